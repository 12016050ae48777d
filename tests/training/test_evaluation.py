"""Tests of STS, its files and self-retrieval."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from training.evaluation import sts, vectors
from training.evaluation.pairs import (
    STS_TASKS,
    STSB_DEV,
    DataError,
    Pair,
    TaskFiles,
    sick,
    sts_benchmark,
    sts_year,
)
from training.evaluation.vectors import EvaluationError, unit_vectors

Vectors = NDArray[np.float32]


def letters(texts: Sequence[str]) -> Vectors:
    """Return the counts of a text's letters as its vector."""
    return np.array([[text.count(chr(97 + i)) for i in range(26)] for text in texts], dtype=np.float32)


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())


def test_semeval_pairs_without_a_score_are_left_out_and_spaces_made_single(tmp_path: Path) -> None:
    write(tmp_path, {
        "STS.input.a.txt": "one  cat\ta dog \tmore\nnot\trated\nthree\u2028x\tfour\n",
        "STS.gs.a.txt": "4.5\n\n0\n",
        "STS.input.b.txt": "x\ty\n",
        "STS.gs.b.txt": "1\n",
    })  # fmt: skip
    subsets = sts_year("a", "b")(tmp_path)
    assert subsets == {
        "a": [Pair("one cat", "a dog", 4.5), Pair("three x", "four", 0.0)],
        "b": [Pair("x", "y", 1.0)],
    }


def test_benchmark_and_sick_columns(tmp_path: Path) -> None:
    write(tmp_path, {
        "sts-test.csv": "main\tfile\tyear\t1\t2.5\ta girl\ta boy\tsource\n",
        "SICK_test_annotated.txt": "pair_ID\tA\tB\tscore\tlabel\r\n6\tno boy\ta kid\t3.3\tNEUTRAL\r\n",
    })  # fmt: skip
    assert sts_benchmark("test")(tmp_path) == {"test": [Pair("a girl", "a boy", 2.5)]}
    assert sick("test", "SICK_test_annotated.txt")(tmp_path) == {"test": [Pair("no boy", "a kid", 3.3)]}


@pytest.mark.parametrize(
    ("inputs", "golds", "message"),
    [
        ("a\tb\nc\n", "1\n2\n", r"STS\.input\.a\.txt:2: expected two sentences"),
        ("a\tb\nc\td\n", "1\nx\n", r"STS\.gs\.a\.txt:2: 'x' is not a score"),
        ("a\tb\nc\td\n", "1\n7\n", r"STS\.gs\.a\.txt:2: a score of 7, expected 0 to 5"),
        ("a\tb\nc\td\n", "1\nnan\n", r"STS\.gs\.a\.txt:2: a score of nan"),
        ("a\tb\n\td\n", "1\n2\n", r"STS\.input\.a\.txt:2: the sentence is empty"),
        ("a\tb\nc\td\n", "1\n", r"STS\.gs\.a\.txt: 1 lines, but STS\.input\.a\.txt has 2"),
        (b"a\tb\nc\t\xff\n", "1\n2\n", r"STS\.input\.a\.txt:2: not UTF-8 in column 3"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, inputs: str | bytes, golds: str, message: str) -> None:
    write(tmp_path, {"STS.input.a.txt": inputs, "STS.gs.a.txt": golds})
    with pytest.raises(DataError, match=message):
        sts_year("a")(tmp_path)


def test_a_short_row_of_a_table_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"sts-test.csv": "a\tb\tc\td\t1.0\tx\ty\na\tb\n"})
    with pytest.raises(DataError, match=r"sts-test\.csv:2: 2 columns separated by tabs, expected 7"):
        sts_benchmark("test")(tmp_path)


def test_a_missing_file_and_missing_pairs_are_named(tmp_path: Path) -> None:
    task = TaskFiles("STS/here", "STS.*.txt", sts_year("a"), pairs=3)
    with pytest.raises(DataError, match=rf"^{tmp_path}/STS/here: no such folder; `isosphere"):
        task.load(tmp_path)
    (tmp_path / "STS/here").mkdir(parents=True)
    with pytest.raises(DataError, match=r"STS/here/STS\.input\.a\.txt: No such file"):
        task.load(tmp_path)
    write(tmp_path / "STS/here", {"STS.input.a.txt": "a\tb\n", "STS.gs.a.txt": "1\n"})
    with pytest.raises(DataError, match=r"STS/here: 1 scored pairs, expected 3"):
        task.load(tmp_path)


@pytest.mark.parametrize("within", ["senteval/downstream", "downstream"])
def test_data_lie_in_the_folder_or_in_its_senteval(within: str, tmp_path: Path) -> None:
    task = TaskFiles("t", "STS.*.txt", sts_year("a"), pairs=1)
    files: dict[str, str | bytes] = {"STS.input.a.txt": "a\tb\n", "STS.gs.a.txt": "1\n"}
    write(tmp_path / within / "t", files)
    assert task.present(tmp_path) and task.load(tmp_path) == task.load(tmp_path / within)
    assert not task.present(tmp_path / "elsewhere")


def test_real_data_have_the_published_counts(test_data: Path) -> None:
    counts = {task: sum(map(len, files.load(test_data).values())) for task, files in STS_TASKS.items()}
    assert counts == {
        **{"STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186},
        **{"STSB": 1379, "SICKR": 4927},
    }
    assert sum(map(len, STSB_DEV.load(test_data).values())) == 1500


def test_each_text_is_encoded_once() -> None:
    asked: list[str] = []

    def encode(texts: Sequence[str]) -> Vectors:
        asked.extend(texts)
        return letters(texts)

    pairs = [Pair("ab", "abc", 4), Pair("ab", "xyz", 0), Pair("abc", "abd", 3)]
    sts.evaluate(encode, {"one": {"a": pairs}, "two": {"b": pairs[::-1]}})
    assert sorted(asked) == ["ab", "abc", "abd", "xyz"]


@given(st.permutations(range(8)))
def test_the_order_of_pairs_does_not_matter(order: list[int]) -> None:
    words = ["abc", "abd", "xyz", "axy", "bbc", "cab", "zzz", "aab"]
    pairs = [Pair(word, "abz", float(i % 6)) for i, word in enumerate(words)]
    score = sts.evaluate(letters, {"t": {"s": pairs}})["t"]
    moved = sts.evaluate(letters, {"t": {"s": [pairs[i] for i in order]}})["t"]
    assert moved.spearman.all == pytest.approx(score.spearman.all)
    assert moved.pearson.all == pytest.approx(score.pearson.all)


def test_equal_sentences_are_ties() -> None:
    def encode(texts: Sequence[str]) -> Vectors:
        return np.random.default_rng(0).normal(size=(len(texts), 50)).astype(np.float32)

    same = [Pair(f"text {i}", f"text {i}", float(i % 5)) for i in range(20)]
    with pytest.raises(EvaluationError, match="t s: all cosines are equal"):
        sts.evaluate(encode, {"t": {"s": same}})


def test_scores_and_table() -> None:
    pairs = [Pair("ab", "ab", 5), Pair("ab", "ac", 3), Pair("ab", "xy", 0)]
    scores = sts.evaluate(letters, {"STS12": {"s": pairs}, "STS13": {"s": [*pairs, Pair("b", "bc", 1)]}})
    assert scores["STS12"].spearman == sts.Aggregates(all=100, mean=100, wmean=100)
    assert scores["STS12"].pairs == 3
    mean = round((100 + round(scores["STS13"].spearman.all, 2)) / 2, 2)
    header, row = sts.table(scores).splitlines()
    assert header.split() == ["STS12", "STS13", "mean"]
    assert row.split() == ["100.00", f"{scores['STS13'].spearman.all:.2f}", f"{mean:.2f}"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_vector_that_is_no_number_is_an_error_and_never_a_score(bad: float) -> None:
    def encode(texts: Sequence[str]) -> Vectors:
        vectors = letters(texts)
        vectors[1, 0] = bad
        return vectors

    pairs = [Pair("ab", "cd", 5), Pair("ef", "gh", 3)]
    with pytest.raises(
        EvaluationError, match="1 of 4 vectors contain NaN or infinity, the first is the vector of 'cd'"
    ):
        sts.evaluate(encode, {"t": {"s": pairs}})
    with pytest.raises(EvaluationError, match="NaN"):
        vectors.reciprocal_ranks(encode, [("one two", "three four"), ("five six", "seven eight")])


def test_a_vector_of_zeros_has_cosine_zero() -> None:
    unit = unit_vectors(letters, ["ab", "123"])
    np.testing.assert_allclose(unit, [[0.5**0.5] * 2 + [0] * 24, [0] * 26])


def test_a_wrong_number_of_vectors_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="2 texts gave an array of shape"):
        unit_vectors(lambda texts: letters(texts[1:]), ["ab", "cd"])


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("one two three four five", ("one two three", "four five")),
        ("one  two three\tfour", ("one two", "three four")),
        ("one two three", None),
        ("", None),
    ],
)
def test_halves(sentence: str, expected: tuple[str, str] | None) -> None:
    assert vectors.halves(sentence) == expected


def from_rows(rows: NDArray[np.float64]) -> Callable[[Sequence[str]], Vectors]:
    return lambda texts: rows[: len(texts)].astype(np.float32)


HALVES = [(f"{i} a", "b c") for i in range(12)]


def test_mrr_of_the_perfect_and_of_the_collapsed_encoder() -> None:
    perfect = np.repeat(np.eye(12), 2, axis=0)
    assert vectors.reciprocal_ranks(from_rows(perfect), HALVES).mean() == 1
    assert vectors.reciprocal_ranks(from_rows(np.ones((24, 3))), HALVES).mean() == 0


@pytest.mark.parametrize(("nearer", "value"), [(9, 0.1), (10, 0)])
def test_a_half_that_is_found_tenth_counts_and_one_after_it_does_not(nearer: int, value: float) -> None:
    between, opposite = nearer * [[0.0, 1.0]], nearer % 2 * [[0.0, -1.0]]
    rows = np.array([[1.0, 1.0], [-1.0, 1.0], *between, *opposite])
    assert vectors.reciprocal_ranks(from_rows(rows), HALVES[: len(rows) // 2])[0] == pytest.approx(value)


@given(arrays(np.float64, (8, 3), elements=st.integers(-3, 3).map(float)))
def test_mrr_equals_a_slow_count(rows: NDArray[np.float64]) -> None:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = (rows / np.where(norms > 0, norms, 1)).astype(np.float32)
    cosines = unit @ unit.T
    total = 0.0
    for i in range(8):
        other = i + 1 if i % 2 == 0 else i - 1
        rank = sum(1 for j in range(8) if j != i and cosines[i, j] >= cosines[i, other])
        total += 1 / rank
    assert vectors.reciprocal_ranks(from_rows(rows), HALVES[:4]).mean() == pytest.approx(total / 8)


@pytest.mark.parametrize(
    "tasks",
    [
        pytest.param(["STS16", "STSB"], marks=pytest.mark.slow),
        pytest.param([*STS_TASKS], marks=pytest.mark.nightly),
    ],
    ids=["two tasks", "all"],
)
def test_minilm_scores_as_senteval_says(tasks: list[str], test_data: Path, goldens: Path) -> None:
    from models.encoder.encoder import Encoder

    official = json.loads((goldens / "senteval_minilm.json").read_text())["sts"]
    encode = Encoder.load("minilm", pooling="mean").encode
    scores = sts.evaluate(encode, {task: STS_TASKS[task].load(test_data) for task in tasks})
    for task in scores.keys() - {"STSB", "SICKR"}:
        assert scores[task].spearman.all == pytest.approx(100 * official[task]["spearman"]["all"], abs=0.01)
        for subset, expected in official[task]["subsets"].items():
            assert scores[task].subsets[subset].pearson == pytest.approx(100 * expected["pearson"], abs=0.01)
    stsb = 100 * official["STSBenchmark"]["subsets"]["test"]["spearman"]
    assert scores["STSB"].spearman.all == pytest.approx(stsb, abs=0.01)
    if "SICKR" in scores:
        assert scores["SICKR"].spearman.all == pytest.approx(77.15, abs=0.01)
        assert sts.mean_of_tasks(scores) == pytest.approx(78.88, abs=0.02)
