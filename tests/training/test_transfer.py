"""Tests of SentEval's transfer tasks, from labelled sentences to scores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from training.evaluation import transfer
from training.evaluation.labelled import TRANSFER_TASKS, Example, Labelled
from training.evaluation.subjects import open_subject
from training.evaluation.vectors import Encode, EvaluationError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DIM = 6
NARROW = tuple(2.0**exponent for exponent in range(-2, 4))
WIDE = tuple(2.0**exponent for exponent in range(-1, 6))


def encode(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return a random direction for each text, with different lengths."""
    rows = [np.random.default_rng(list(text.encode())).normal(size=DIM) for text in texts]
    return (3 * np.array(rows)).astype(np.float32)


def unit(text: str) -> Floats:
    vector = encode([text])[0].astype(np.float64)
    scaled: Floats = vector / np.linalg.norm(vector)
    return scaled


def examples(start: int, count: int, *, classes: int = 2, pairs: bool = False) -> list[Example]:
    """Return sentences of one to three words whose vectors predict the class, with noise."""
    rng = np.random.default_rng(start)
    found = []
    for i in range(start, start + count):
        texts = tuple(f"{side}{i}" + " word" * int(rng.integers(3)) for side in ("ab" if pairs else "a"))
        known = features(texts)
        direction = known[:classes] + 2 * known[-classes:] + 0.3 * rng.normal(size=classes) - 0.4 * pairs
        found.append(Example(texts, int(direction[0] > 0) if classes == 2 else int(direction.argmax())))
    return found


def features(texts: tuple[str, ...]) -> Floats:
    if len(texts) == 1:
        return unit(texts[0])
    u, v = map(unit, texts)
    return np.concatenate([abs(u - v), u * v])


def arranged(part: Sequence[Example]) -> tuple[Floats, Ints, list[str]]:
    """Return features, labels and texts in SentEval's order: by number of words, then by label."""
    part = sorted(part, key=lambda e: ([len(text.split(" ")) for text in e.texts], e.label))
    return np.array([features(e.texts) for e in part]), np.array([e.label for e in part]), [
        "\t".join(e.texts) for e in part
    ]  # fmt: skip


def fitted(x: Floats, y: Ints, c: float) -> LogisticRegression:
    """Fit to the optimum by another method than the tested one."""
    return LogisticRegression(C=c, solver="newton-cholesky", tol=1e-10, max_iter=100).fit(x, y)


def chosen(x: Floats, y: Ints, grid: Sequence[float], k: int = 10) -> tuple[float, float]:
    means = []
    for c in grid:
        folds = StratifiedKFold(k, shuffle=True, random_state=1111).split(x, y)
        means.append(round(100 * np.mean([fitted(x[a], y[a], c).score(x[b], y[b]) for a, b in folds]), 2))
    return grid[int(np.argmax(means))], max(means)


def digest(texts: Sequence[str]) -> str:
    return sha256("\n".join(texts).encode()).hexdigest()[:16]


@pytest.mark.slow
def test_train_alone_is_folded_within_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "FOLDS", 4)  # 100 fits instead of 610.
    task = Labelled(examples(0, 110))
    score = transfer.evaluate(encode, {"CR": task})["CR"]
    x, y, texts = arranged(task.train)
    expected = []
    for train, test in StratifiedKFold(4, shuffle=True, random_state=1111).split(x, y):
        c, devacc = chosen(x[train], y[train], NARROW, k=4)
        acc = round(100 * fitted(x[train], y[train], c).score(x[test], y[test]), 2)
        expected.append(transfer.Fold(c, devacc, acc, len(train), len(test), digest([texts[i] for i in test])))
    assert score.folds == tuple(expected)
    assert len({fold.c for fold in expected}) > 1
    assert score.dev_accuracy == pytest.approx(np.mean([fold.dev_accuracy for fold in expected]))
    assert score.accuracy == pytest.approx(np.mean([fold.accuracy for fold in expected]))
    assert score.f1 is None


@pytest.mark.slow
def test_several_classes_and_a_test_part_fold_train_over_the_wider_grid() -> None:
    task = Labelled(examples(0, 150, classes=3), test=examples(500, 90, classes=3))
    score = transfer.evaluate(encode, {"TREC": task})["TREC"]
    (x, y, _), (held, gold, texts) = arranged(task.train), arranged(task.test)
    c, devacc = chosen(x, y, WIDE)
    acc = round(100 * fitted(x, y, c).score(held, gold), 2)
    assert score == transfer.TransferScore(
        devacc, acc, None, (transfer.Fold(c, devacc, acc, 150, 90, digest(texts)),), seed=1111
    )
    assert 60 < acc < 100


@pytest.mark.slow
def test_pairs_are_told_apart_by_difference_and_product_and_have_an_f1() -> None:
    task = Labelled(examples(0, 120, pairs=True), test=examples(700, 80, pairs=True))
    score = transfer.evaluate(encode, {"MRPC": task})["MRPC"]
    (x, y, _), (held, gold, _) = arranged(task.train), arranged(task.test)
    c, devacc = chosen(x, y, WIDE)
    predicted = fitted(x, y, c).predict(held)
    hits = int((predicted & gold).sum())
    assert (score.folds[0].c, score.dev_accuracy) == (c, devacc)
    assert score.accuracy == round(100 * float((predicted == gold).mean()), 2)
    assert score.f1 == pytest.approx(100 * 2 * hits / int(predicted.sum() + gold.sum()))
    assert score.f1 != pytest.approx(score.accuracy)


def test_a_dev_part_chooses_c() -> None:
    task = Labelled(examples(0, 90), examples(300, 60), examples(500, 70))
    score = transfer.evaluate(encode, {"SST2": task})["SST2"]
    (x, y, _), (seen, label, _), (held, gold, texts) = map(arranged, (task.train, task.dev, task.test))
    accuracies = [round(100 * fitted(x, y, c).score(seen, label), 2) for c in NARROW]
    c = NARROW[int(np.argmax(accuracies))]
    acc = round(100 * fitted(x, y, c).score(held, gold), 2)
    assert score.folds == (transfer.Fold(c, max(accuracies), acc, 90, 70, digest(texts)),)


def test_predictions_are_those_of_the_scores_and_their_order_that_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "FOLDS", 4)
    tasks = {"CR": Labelled(examples(0, 110)), "SST2": Labelled(examples(0, 90), examples(300, 60), examples(500, 70))}
    mine, theirs = transfer.classify(encode, tasks), transfer.classify(flagged, tasks)
    for name, part in (("CR", tasks["CR"].train), ("SST2", tasks["SST2"].test)):
        found = mine[name]
        cuts = np.cumsum([fold.test for fold in found.score.folds])[:-1]
        hits = np.split(found.predicted == found.labels, cuts)
        assert [round(100 * float(each.mean()), 2) for each in hits] == [fold.accuracy for fold in found.score.folds]
        assert sorted(found.labels) == sorted(example.label for example in part)
        np.testing.assert_array_equal(found.labels, theirs[name].labels)
        assert (found.predicted != theirs[name].predicted).any()
    assert transfer.evaluate(encode, tasks) == {name: found.score for name, found in mine.items()}


def turned(seed: int) -> Encode:
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(DIM, DIM)))[0]
    return lambda texts: (encode(texts) @ rotation).astype(np.float32)


@settings(max_examples=5)
@given(st.integers(0, 1000))
def test_turning_the_space_changes_no_score(seed: int) -> None:
    task = {"SST2": Labelled(examples(0, 90), examples(300, 60), examples(500, 70))}
    assert transfer.evaluate(turned(seed), task) == transfer.evaluate(encode, task)


def flagged(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return vectors that determine the class, `even` or `odd`, with certainty."""
    return np.array([[1.0, 0.0] if int(text[1:].split()[0]) % 2 else [0.0, 1.0] for text in texts], dtype=np.float32)


def test_of_equal_choices_the_lowest_c_is_taken() -> None:
    part = [Example((f"a{i}",), i % 2) for i in range(60)]
    score = transfer.evaluate(flagged, {"TREC": Labelled(part, test=part), "SST2": Labelled(part, part, part)})
    assert [(task.accuracy, task.dev_accuracy, task.folds[0].c) for task in score.values()] == [
        (100, 100, 0.5),
        (100, 100, 0.25),
    ]


def test_each_text_of_a_task_is_encoded_once_and_json_holds_all() -> None:
    asked: list[str] = []

    def noted(texts: Sequence[str]) -> NDArray[np.float32]:
        asked.extend(texts)
        return flagged(texts)

    part = [Example((f"a{i}",), i % 2) for i in range(40)]
    score = transfer.evaluate(noted, {"SST2": Labelled(part, part, part)})["SST2"]
    assert sorted(asked) == sorted(example.texts[0] for example in part)
    plain = json.loads(json.dumps(asdict(score)))
    assert plain["folds"][0]["test_rows"] == score.folds[0].test_rows
    assert (plain["accuracy"], plain["seed"], plain["f1"]) == (100, 1111, None)


def test_a_vector_that_is_no_number_is_an_error_and_never_a_score() -> None:
    def broken(texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = encode(texts)
        vectors[3] = np.nan
        return vectors

    with pytest.raises(EvaluationError, match="1 of 40 vectors contain NaN"):
        transfer.evaluate(broken, {"CR": Labelled(examples(0, 40))})


def test_a_class_too_small_to_fold_is_an_error() -> None:
    part = [Example((f"a{i}",), int(i < 9)) for i in range(60)]
    with pytest.raises(EvaluationError, match="CR: a class of 9 examples can't be divided into 10 folds"):
        transfer.evaluate(encode, {"CR": Labelled(part)})


@pytest.fixture(scope="module")
def minilm() -> Iterator[Encode]:
    with closing(open_subject("minilm", key=None)) as judged:
        yield judged.encode


@pytest.mark.parametrize(
    ("task", "tolerance"),
    [
        pytest.param("MPQA", 0.3, marks=pytest.mark.slow),
        *(pytest.param(*one, marks=pytest.mark.nightly) for one in (("TREC", 1.0), ("MRPC", 0.3), ("CR", 0.3))),
    ],
)
def test_minilm_scores_as_senteval_says(
    minilm: Encode, test_data: Path, goldens: Path, task: str, tolerance: float
) -> None:
    official = json.loads((goldens / "senteval_minilm.json").read_text())["transfer"]["sklearn"][task]
    score = transfer.evaluate(minilm, {task: TRANSFER_TASKS[task].load(test_data)})[task]
    assert score.accuracy == pytest.approx(official["acc"], abs=tolerance)
    assert score.dev_accuracy == pytest.approx(official["devacc"], abs=0.3)
    assert score.f1 == (pytest.approx(official["f1"], abs=0.3) if "f1" in official else None)
