"""Tests of the selection of a run's best weights."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.training.conftest import WORDS
from training.data.corpus import MONITORED, open_corpus
from training.data.documents import Excerpt
from training.evaluation import sts, vectors
from training.evaluation.pairs import SICKR_DEV, STSB_DEV, DataError, TaskFiles
from training.evaluation.selection import by_own_pairs, by_self_retrieval, by_sts_dev, by_stsb_dev
from training.promotion.yardsticks import SelfRetrievalYardstick


def test_an_encoder_that_tells_no_two_texts_apart_is_scored_as_chance(stsb_data: Path) -> None:
    """Continue such a run, which may recover. A study would otherwise lack it."""

    def collapsed(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.ones((len(texts), 4), np.float32)

    assert by_stsb_dev(stsb_data).scores(collapsed)["stsb_dev_spearman"] == 0.0


def test_by_both_dev_parts_it_is_the_mean_of_two_correlations(stsb_data: Path, tmp_path: Path) -> None:
    """Compute DCLR's `avg_sts`. SICK-R's dev set is its trial set."""
    shutil.copytree(stsb_data, tmp_path, dirs_exist_ok=True)
    (tmp_path / "SICK").mkdir()
    rows = [f"{i}\tthe {WORDS[i % 10]} can see\ta {WORDS[i // 50]} can see\t{1 + i % 5}\tX\n" for i in range(500)]
    (tmp_path / "SICK" / "SICK_trial.txt").write_text("pair_ID\tA\tB\tscore\tentailment\n" + "".join(rows))

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([np.random.default_rng(list(text.encode())).standard_normal(4) for text in texts]).astype("f4")

    def spearman(task: TaskFiles) -> float:
        return sts.evaluate(encode, {"dev": task.load(tmp_path)})["dev"].spearman.all

    selection = by_sts_dev(tmp_path)
    found = selection.scores(encode)
    assert found[selection.metric] == pytest.approx((spearman(STSB_DEV) + spearman(SICKR_DEV)) / 2)
    assert found["sickr_dev_spearman"] == pytest.approx(spearman(SICKR_DEV))
    assert {"stsb_dev_spearman", "alignment", "uniformity"} < found.keys()
    assert "1500 pairs of STS-B dev and on the 500 of SICK-R dev" in selection.criterion


def test_both_dev_parts_must_be_there(stsb_data: Path) -> None:
    with pytest.raises(DataError, match="SICK"):
        by_sts_dev(stsb_data)


def test_a_part_of_what_is_held_out_chooses_and_all_of_it_judges(tmp_path: Path) -> None:
    """Check that a promotion also uses held-out sentences that did not select weights, and none from training."""
    file = tmp_path / "many.txt"
    file.write_text("".join(f"the {i} has a {i}\n" for i in range(30 * MONITORED)))
    corpus = open_corpus([str(file)])
    asked: list[str] = []

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        asked.extend(texts)
        return np.random.default_rng(0).standard_normal((len(texts), 4)).astype(np.float32)

    by_self_retrieval(corpus).scores(encode)
    chosen_by = set(asked)
    asked.clear()
    SelfRetrievalYardstick(corpus).judge(encode)
    assert len(chosen_by) == 2 * MONITORED and len(asked) == 2 * len(corpus.census.held_out) == 3 * MONITORED
    assert chosen_by < set(asked)


@given(st.text())
def test_halves_are_the_whole_sentence_and_as_even_as_its_words(text: str) -> None:
    halves, words = vectors.halves(text), text.split()
    if halves is not None:
        assert [each for half in halves for each in half.split()] == words or "".join(halves) == " ".join(words)
    if text.isascii():
        middle = (len(words) + 1) // 2
        assert halves == ((" ".join(words[:middle]), " ".join(words[middle:])) if len(words) >= 4 else None)


@pytest.mark.parametrize(
    "sentence", ["今日は天気がいいです", "机器学习的入门书", "วันนี้อากาศดีมาก", "Python 用の辞書です"]
)
def test_a_sentence_without_spaces_is_halved_by_characters(sentence: str, tmp_path: Path) -> None:
    halves = vectors.halves(sentence)
    assert halves is not None and min(map(len, halves)) >= len(sentence) // 5
    file = tmp_path / "many.txt"
    file.write_text("".join(f"{sentence}{i}\n" for i in range(200)), encoding="utf-8")
    by_self_retrieval(open_corpus([str(file)]))
    assert list(Excerpt(words=(4, 20)).of([sentence, sentence * 5])) == [sentence]


PAIRS = [("one", "one", "9"), ("one", "two", "5"), ("one", "three", "-1.5")]
ANGLES = {"one": 0.0, "two": 0.5, "three": 1.0}


def _turned(texts: Sequence[str]) -> NDArray[np.float32]:
    return np.array([[np.cos(ANGLES[text]), np.sin(ANGLES[text])] for text in texts], np.float32)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "sentence1,sentence2,score\n" + "".join(f"{','.join(pair)}\n" for pair in PAIRS)),
        ("b.csv", "\ufeffid,score,sentence2,sentence1\r\n" + "".join(f'7,{s},"{b}",{a}\r\n' for a, b, s in PAIRS)),
        ("c.tsv", "sentence1\tsentence2\tscore\n" + "".join("\t".join(pair) + "\n" for pair in PAIRS)),
        (
            "d.jsonl",
            "\ufeff\n" + "\n".join(f'{{"sentence1": "{a}", "sentence2": "{b}", "score": {s}}}\n' for a, b, s in PAIRS),
        ),
    ],
)
def test_own_pairs_on_any_scale_choose(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    chosen = by_own_pairs(str(tmp_path / name))
    assert chosen.scores(_turned)["dev_spearman"] == pytest.approx(100)
    assert chosen.scores(lambda texts: _turned(list(reversed(texts))))["dev_spearman"] < 100


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "text,score\nx,1\n", "a.csv: no column sentence1; there are text, score"),
        ("a.csv", "sentence1,sentence2,score\na,b,1\na,,2\n", "a.csv:3: sentence1 and sentence2"),
        ("a.csv", "sentence1,sentence2,score\na,b,good\n", "a.csv:2: score: 'good'"),
        ("a.csv", "sentence1,sentence2,score\na,b,nan\n", "a.csv:2: score: 'nan'"),
        ("a.csv", "sentence1,sentence2,score\na,b,1\nb,c,1\n", "a.csv: 2 pairs with the same score"),
        ("a.csv", "sentence1,sentence2,score\na,a,1\na,a,2\n", "a.csv: 2 pairs of the same text"),
        ("a.jsonl", '{"sentence1": "a"}\n', "a.jsonl:1: no column sentence2; there are sentence1"),
        ("a.jsonl", f'{{"sentence1": "a", "sentence2": "b", "score": 1{"0" * 400}}}\n', "a.jsonl:1: score: 1000"),
        ("a.jsonl", "[]\n", "a.jsonl:1: expected a JSON object"),
        ("absent.csv", None, "absent.csv: No such file"),
    ],
)
def test_own_pairs_that_are_broken_are_named(tmp_path: Path, name: str, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as refusal:
        by_own_pairs(str(tmp_path / name))
    assert says in str(refusal.value) and str(tmp_path) in str(refusal.value)
