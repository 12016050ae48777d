"""By what encoders are compared where nobody has scored a pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from models import bundle
from models.graph import Graph
from training.corpus import open_corpus
from training.evaluation.self_retrieval import halves, mrr10, reciprocal_ranks
from training.promotion.yardsticks import Unlabelled


def test_reciprocal_ranks_are_those_of_self_retrieval(artifacts: Path, corpus: Path) -> None:
    opened = open_corpus([str(corpus)])
    pairs = [pair for pair in map(halves, opened.census.held_out) if pair]
    tiny, other = (Graph(bundle.load(artifacts / name)).encode for name in ("tiny", "other"))
    assert reciprocal_ranks(tiny, pairs).mean() == pytest.approx(mrr10(tiny, pairs))
    yardstick = Unlabelled(opened)
    a, b = yardstick.judge(tiny), yardstick.judge(other)
    forth, back = yardstick.compare(a, b), yardstick.compare(b, a)
    assert forth.difference == pytest.approx(100 * (mrr10(tiny, pairs) - mrr10(other, pairs)))
    assert (back.difference, back.low, back.high) == pytest.approx((-forth.difference, -forth.high, -forth.low))
    same = yardstick.compare(a, a)
    assert (same.difference, same.low, same.high, same.better) == (0, 0, 0, 0.5)
    assert yardstick.scores(tiny) == {"self-retrieval": a.score} and list(yardstick.limits) == ["self-retrieval"]


def test_few_sentences_may_differ_by_two_flipped_ranks(artifacts: Path, corpus: Path) -> None:
    yardstick = Unlabelled(open_corpus([str(corpus)]))
    values = yardstick.judge(Graph(bundle.load(artifacts / "tiny")).encode).values
    second_instead_of_first = 50 / 2 / len(values)  # a value is the mean of both directions
    (limit,) = yardstick.limits.values()
    assert limit == pytest.approx(max(0.2, 2 * second_instead_of_first))
