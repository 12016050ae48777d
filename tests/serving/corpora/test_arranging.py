"""Arrangements equal slow, plain versions of the same definition."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.arranging import diverse, grouped, sorted_by, value_at
from serving.corpora.ports import Ranking
from serving.corpora.values import Document, Sort

DATES = ["2024-03-05 09:00", "2024-03-05T08:30:00Z", "2024-03-05T10:00:00+02:00"]
scalars = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.sampled_from(["", "a", "b", *DATES])
metadata = st.dictionaries(st.sampled_from(["x", "y"]), scalars | st.lists(scalars, max_size=2), max_size=2)
documents = st.lists(metadata, max_size=12).map(lambda rows: [Document(str(i), "", row) for i, row in enumerate(rows)])


def before(one: Any, other: Any) -> bool:
    """Whether a value sorts before another one: false, true, numbers, dates as points in time, other strings."""

    def kind(value: Any) -> int:
        return 0 if isinstance(value, bool) else 1 if not isinstance(value, str) else 2 if value in DATES else 3

    if one in DATES and other in DATES:
        one, other = (datetime.fromisoformat(value if "T" in value else f"{value}Z") for value in (one, other))
        return bool(one < other)
    return kind(one) < kind(other) or (kind(one) == kind(other) and one < other)


@given(documents, st.booleans())
def test_sorting_is_a_stable_order_with_missing_values_last(rows: list[Document], descending: bool) -> None:
    positions = sorted_by(rows, [Sort("x", descending)])
    assert sorted(positions) == list(range(len(rows)))
    values = [value_at(rows[i], "x") for i in positions]
    for (i, one), (j, other) in zip(
        zip(positions, values, strict=True), zip(positions[1:], values[1:], strict=True), strict=False
    ):
        if one is None:
            assert other is None and i < j
        elif other is not None:
            assert not (before(one, other) if descending else before(other, one))
            assert before(one, other) or before(other, one) or i < j


@given(documents)
def test_a_second_order_only_orders_equal_values(rows: list[Document]) -> None:
    both = sorted_by(rows, [Sort("x"), Sort("y", descending=True)])
    by_y = sorted_by(rows, [Sort("y", descending=True)])
    assert both == [by_y[i] for i in sorted_by([rows[i] for i in by_y], [Sort("x")])]


def slow_mmr(relevance: Any, vectors: Any, diversity: float, k: int) -> list[int]:
    taken: list[int] = []
    while len(taken) < min(k, len(relevance)):
        left = [i for i in range(len(relevance)) if i not in taken]
        gains = {
            i: (1 - diversity) * relevance[i]
            - diversity * max((float(vectors[i] @ vectors[j]) for j in taken), default=0.0)
            for i in left
        }
        taken.append(max(left, key=lambda i: (gains[i], -i)))
    return taken


@given(st.integers(0, 10), st.integers(1, 10), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.integers(0, 2**32 - 1))
def test_diversity_is_maximal_marginal_relevance(n: int, k: int, diversity: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-1, 2, (n, 4)).astype(np.float32) / np.float32(2)  # sums of such numbers are exact
    relevance = np.sort(rng.integers(0, 8, n).astype(np.float32) / np.float32(8))[::-1]
    assert diverse(relevance, vectors, diversity, k) == slow_mmr(relevance, vectors, diversity, k)


@given(documents, st.integers(0, 2), st.integers(1, 3), st.integers(1, 2))
def test_groups_have_the_best_passages_of_each_value(rows: list[Document], first: int, k: int, size: int) -> None:
    ranking = Ranking(np.arange(1, len(rows) + 1), np.linspace(1, 0, len(rows)))
    owners = dict(enumerate(rows, start=1))
    chosen, number = grouped(owners, ranking, "x", slice(first, first + k), size)
    values = [value_at(row, "x") for row in rows]
    keyed = [(isinstance(value, bool), value) for value in values]
    order = list(dict.fromkeys(one for one in keyed if one[1] is not None))
    assert number == len(order)
    expected = [
        i for group in order[first : first + k] for i in [i for i, one in enumerate(keyed) if one == group][:size]
    ]
    assert chosen == expected


def test_passages_of_removed_documents_are_in_no_group() -> None:
    ranking = Ranking(np.array([1, 2, 3]), np.array([0.9, 0.8, 0.7]))
    owners = {key: Document(str(key), "", {"x": "a"}) for key in (1, 3)}
    assert grouped(owners, ranking, "x", slice(0, 5), 5) == ([0, 2], 1)


def test_the_id_is_a_field() -> None:
    assert value_at(Document("a", "", {"$id": "b"}), "$id") == "a"
    assert value_at(Document("a", "", {"by": [{"name": "Austen"}, {"name": "Burney"}]}), "by.name") == "Austen"
