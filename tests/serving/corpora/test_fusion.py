"""Fusion against its formula, written out slowly in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.arranging import Fusion, fuse
from serving.corpora.ports import Ranking

scores = st.floats(-1, 1).map(lambda x: round(x, 3))
rankings = st.lists(st.tuples(st.integers(1, 12), scores), unique_by=lambda row: row[0], max_size=8)


def ranking(rows: list[tuple[int, float]]) -> Ranking:
    rows = sorted(rows, key=lambda row: (-row[1], row[0]))
    return Ranking(np.array([key for key, _ in rows], np.int64), np.array([score for _, score in rows], np.float32))


def oracle(a: Ranking, b: Ranking, fusion: Fusion, alpha: float) -> dict[int, float]:
    total: dict[int, float] = {}
    for one, weight in ((a, alpha), (b, 1 - alpha)):
        values = [float(score) for score in one.scores]
        for rank, (key, value) in enumerate(zip(one.keys.tolist(), values, strict=True), start=1):
            width = max(values) - min(values)
            scaled = (value - min(values)) / width if width else 1.0
            total[key] = total.get(key, 0.0) + (1 / (60 + rank) if fusion == "rrf" else weight * scaled)
    return total


@pytest.mark.parametrize("fusion", ["rrf", "weighted"])
@given(a=rankings, b=rankings, k=st.integers(1, 20), alpha=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_the_formula(
    fusion: Fusion, a: list[tuple[int, float]], b: list[tuple[int, float]], k: int, alpha: float
) -> None:
    dense, lexical = ranking(a), ranking(b)
    expected = oracle(dense, lexical, fusion, alpha)
    found = fuse(dense, lexical, k, fusion, alpha)
    assert len(found.keys) == min(k, len(expected))
    for key, score in zip(found.keys.tolist(), found.scores.tolist(), strict=True):
        assert score == pytest.approx(expected.pop(key), abs=2e-6)
    assert all(score <= found.scores[-1] + 2e-6 for score in expected.values())
    order = list(zip((-found.scores).tolist(), found.keys.tolist(), strict=True))
    assert order == sorted(order)


def test_being_first_in_both_beats_being_first_in_one() -> None:
    both = fuse(ranking([(1, 0.9), (2, 0.8)]), ranking([(1, 5.0), (3, 4.0)]), 3, "rrf", 0.5)
    assert both.keys[0] == 1
    assert both.scores[0] == pytest.approx(2 / 61, abs=5e-7)  # scores have six decimals


def test_all_the_weight_on_one_side_is_that_sides_order() -> None:
    dense, lexical = ranking([(1, 0.9), (2, 0.5), (3, 0.1)]), ranking([(3, 9.0), (2, 5.0), (1, 1.0)])
    assert fuse(dense, lexical, 3, "weighted", 1.0).keys.tolist() == [1, 2, 3]
    assert fuse(dense, lexical, 3, "weighted", 0.0).keys.tolist() == [3, 2, 1]
