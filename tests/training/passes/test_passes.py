from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.encoding.packing import PASS_COST, group_by_length

lengths_of_a_batch = st.lists(st.integers(1, 64), min_size=1, max_size=80)
most_a_pass_may_have = st.none() | st.integers(1, 90)


def padded(lengths: list[int], passes: list[list[int]]) -> int:
    return sum(len(rows) * max(lengths[row] for row in rows) for rows in passes)


@given(lengths_of_a_batch, most_a_pass_may_have, st.sampled_from(["cpu", "cuda"]))
def test_every_row_is_in_one_pass(lengths: list[int], most: int | None, device: str) -> None:
    passes = group_by_length(lengths, device=device, most=most)
    assert sorted(row for rows in passes for row in rows) == list(range(len(lengths)))
    assert all(passes)


@given(lengths_of_a_batch, most_a_pass_may_have)
def test_no_pass_has_more_than_it_may(lengths: list[int], most: int | None) -> None:
    assert all(len(rows) <= (most or len(lengths)) for rows in group_by_length(lengths, device="cpu", most=most))


@given(lengths_of_a_batch)
def test_there_is_never_more_padding_than_in_one_pass(lengths: list[int]) -> None:
    assert padded(lengths, group_by_length(lengths, device="cpu")) <= len(lengths) * max(lengths)


@given(lengths_of_a_batch, most_a_pass_may_have)
def test_no_sentence_of_a_pass_is_longer_than_one_of_the_pass_before(lengths: list[int], most: int | None) -> None:
    passes = group_by_length(lengths, device="cpu", most=most)
    for longer, shorter in pairwise(passes):
        assert min(lengths[row] for row in longer) >= max(lengths[row] for row in shorter)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8), st.none() | st.integers(1, 8))
def test_no_other_way_to_cut_costs_less(lengths: list[int], most: int | None) -> None:
    def cost(passes: list[list[int]]) -> int:
        return padded(lengths, passes) + PASS_COST["cpu"] * len(passes)

    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    every = (
        [order[a:b] for a, b in pairwise((0, *cuts, len(order)))]
        for count in range(len(order))
        for cuts in combinations(range(1, len(order)), count)
    )
    allowed = [passes for passes in every if all(len(rows) <= (most or len(order)) for rows in passes)]
    assert cost(group_by_length(lengths, device="cpu", most=most)) == min(map(cost, allowed))


def test_where_a_pass_costs_much_there_is_one_unless_it_may_not_be() -> None:
    lengths = [32, 3] * 40
    assert len(group_by_length(lengths, device="cuda")) == 1
    assert [len(rows) for rows in group_by_length(lengths, device="cuda", most=20)] == [20, 20, 20, 20]


def test_long_and_short_sentences_part() -> None:
    assert group_by_length([30, 4] * 10, device="cpu") == [list(range(0, 20, 2)), list(range(1, 20, 2))]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_empty_batch_has_no_passes(device: str) -> None:
    assert group_by_length([], device=device) == []
