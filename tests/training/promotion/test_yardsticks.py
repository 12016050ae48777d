"""Tests of the comparison of encoders without human scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.bundle import bundle
from models.errors import Refused
from models.runtimes.graph import Graph
from tests.conftest import WORDS
from tests.training.promotion.conftest import Command
from training.data.corpus import open_corpus
from training.evaluation import beir, retrieval
from training.evaluation.pairs import DataError
from training.evaluation.vectors import halves, reciprocal_ranks
from training.promotion.yardsticks import SelfRetrievalYardstick, choose_yardstick


def test_self_retrieval_compares_mean_reciprocal_ranks(artifacts: Path, corpus: Path) -> None:
    opened = open_corpus([str(corpus)])
    pairs = [pair for pair in map(halves, opened.census.held_out) if pair]
    tiny, other = (Graph(bundle.load(artifacts / name)).encode for name in ("tiny", "other"))
    ours, theirs = (reciprocal_ranks(encode, pairs).mean() for encode in (tiny, other))
    yardstick = SelfRetrievalYardstick(opened)
    a, b = yardstick.judge(tiny), yardstick.judge(other)
    forth, back = yardstick.compare(a, b), yardstick.compare(b, a)
    assert forth.difference == pytest.approx(100 * (ours - theirs))
    assert (back.difference, back.low, back.high) == pytest.approx((-forth.difference, -forth.high, -forth.low))
    same = yardstick.compare(a, a)
    assert (same.difference, same.low, same.high, same.better) == (0, 0, 0, 0.5)
    assert yardstick.scores(tiny) == {"self-retrieval": a.score} and list(yardstick.limits) == ["self-retrieval"]


def test_few_sentences_may_differ_by_two_flipped_ranks(artifacts: Path, corpus: Path) -> None:
    yardstick = SelfRetrievalYardstick(open_corpus([str(corpus)]))
    values = yardstick.judge(Graph(bundle.load(artifacts / "tiny")).encode).values
    second_instead_of_first = 50 / 2 / len(values)  # A value is the mean of both directions.
    (limit,) = yardstick.limits.values()
    assert limit == pytest.approx(max(0.2, 2 * second_instead_of_first))


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """Write data with one collection: a document for each word, and a query for each of the first half."""
    folder = tmp_path / "data" / "retrieval" / "zoo"
    (folder / "qrels").mkdir(parents=True)
    asked = WORDS[: len(WORDS) // 2]
    for file, rows in (
        ("corpus", [{"_id": word, "text": f"the {word}"} for word in WORDS]),
        ("queries", [{"_id": f"q-{word}", "text": f"a {word} and a {WORDS[0]}"} for word in asked]),
    ):
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = "".join(f"q-{word}\t{word}\t1\n" for word in asked)
    (folder / "qrels" / "test.tsv").write_text(f"{beir.HEADER}\n{judged}")
    return tmp_path / "data"


def test_a_collection_is_a_yardstick(artifacts: Path, zoo: Path) -> None:
    yardstick = choose_yardstick(zoo, [], "zoo")
    tiny, other = (Graph(bundle.load(artifacts / name)).encode for name in ("tiny", "other"))
    a, b = yardstick.judge(tiny), yardstick.judge(other)
    expected = [retrieval.evaluate(encode, beir.find(zoo, "zoo")).ndcg10 for encode in (tiny, other)]
    assert [a.score, b.score] == pytest.approx(expected)
    between = yardstick.compare(a, b)
    assert between.difference == pytest.approx(expected[0] - expected[1])
    assert between.low <= between.difference <= between.high
    assert yardstick.scores(tiny) == {"zoo nDCG@10": a.score} and list(yardstick.limits) == ["zoo nDCG@10"]
    prompts = {"query": f"{WORDS[3]} {WORDS[4]} "}
    expected = [retrieval.evaluate(tiny, beir.find(zoo, "zoo"), prompts=prompts).ndcg10]
    assert (
        yardstick.judge(tiny, prompts).score == yardstick.scores(tiny, prompts)["zoo nDCG@10"] == expected[0] != a.score
    )


def test_a_sample_is_known_by_texts_and_judgements(zoo: Path) -> None:
    before = choose_yardstick(zoo, [], "zoo").sample
    assert choose_yardstick(zoo, [], "zoo").sample == before
    assert choose_yardstick(zoo, [], "zoo:test").metric == choose_yardstick(zoo, [], "zoo").metric, (
        "its best is one, by either name"
    )
    judged = zoo / "retrieval" / "zoo" / "qrels" / "test.tsv"
    judged.write_text(judged.read_text().replace("\t1\n", "\t2\n", 1))
    assert choose_yardstick(zoo, [], "zoo").sample != before


def test_a_collection_needs_its_data(zoo: Path) -> None:
    with pytest.raises(DataError, match="--retrieval zoo: add --data DIR, a folder that contains retrieval/zoo"):
        choose_yardstick(None, [], "zoo")
    with pytest.raises(DataError, match="no collection 'farm' in BEIR's layout; there is zoo"):
        choose_yardstick(zoo, [], "farm")


def test_two_yardsticks_are_one_too_many(zoo: Path) -> None:
    with pytest.raises(Refused, match=r"--corpus a\.txt: --data and --corpus both choose the data"):
        choose_yardstick(zoo, ["a.txt", "b.txt"])


@pytest.mark.slow
def test_what_finds_less_in_the_domain_is_refused(artifacts: Path, zoo: Path, command: Command) -> None:
    yardstick = choose_yardstick(zoo, [], "zoo")
    scores = {name: yardstick.judge(Graph(bundle.load(artifacts / name)).encode).score for name in ("tiny", "other")}
    worse, better = sorted(scores, key=lambda name: scores[name])
    assert scores[better] - scores[worse] > 0.5, "more than the margin"
    by = ("--data", str(zoo), "--retrieval", "zoo")
    assert command("promote", better, *by) == 0, "without a score of STS, which nobody asks for here"
    assert command("promote", worse, *by) == 1
