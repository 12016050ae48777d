"""Tests of the count of arriving bodies: at most one body exceeds the limit, and the count returns to 0."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api.routing.request_body import UNCOUNTED, BytesInFlight
from serving.errors import Overloaded
from serving.operations.keys import Key
from serving.operations.limits import Caller, Limits, charged_to

BODIES = 4
steps = st.lists(st.tuples(st.integers(0, BODIES - 1), st.integers(0, 4 * UNCOUNTED)), max_size=40)


@given(limit=st.integers(1, 6 * UNCOUNTED), steps=steps)
def test_no_two_hold_more_than_the_limit_and_one_always_passes(limit: int, steps: list[tuple[int, int]]) -> None:
    arriving, held = BytesInFlight(limit), [0] * BODIES
    with ExitStack() as receiving:
        bodies = [receiving.enter_context(arriving.body()) for _ in range(BODIES)]
        for i, more in steps:
            beyond = [max(0, size - UNCOUNTED) for size in held]
            wanted = max(0, held[i] + more - UNCOUNTED)
            others = sum(beyond) - beyond[i]
            fits = wanted == beyond[i] or not others or others + wanted <= limit
            try:
                bodies[i](held[i] + more)
            except Overloaded:
                assert not fits
            else:
                assert fits
                held[i] += more
    with arriving.body() as first, arriving.body() as second:  # No bodies remain.
        first(limit + UNCOUNTED)
        second(UNCOUNTED)


def test_the_bodies_of_one_key_leave_a_quarter_to_the_others() -> None:
    arriving, limit = BytesInFlight(4 * UNCOUNTED), 4 * UNCOUNTED
    greedy, modest = (Caller(Key(name=name, sha256="0" * 64, scopes=("read",)), Limits()) for name in ("greedy", "b"))
    with ExitStack() as receiving:
        with charged_to(greedy):
            first, second = (receiving.enter_context(arriving.body()) for _ in range(2))
            first(3 * UNCOUNTED)
            second(2 * UNCOUNTED)
            with pytest.raises(
                Overloaded, match="bodies of the key 'greedy' have 196608 bytes in memory, and the limit is 196608"
            ):
                second(3 * UNCOUNTED)
        with charged_to(modest):
            other = receiving.enter_context(arriving.body())
            other(2 * UNCOUNTED)
            with pytest.raises(Overloaded, match=f"the limit is {limit}"):
                other(3 * UNCOUNTED)
