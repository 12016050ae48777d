"""The count of bodies on their way: never beyond its bound by two, and nothing when all are there."""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st

from serving.api.routing.request_body import UNCOUNTED, BytesInFlight
from serving.errors import Overloaded

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
    with arriving.body() as first, arriving.body() as second:  # nothing is left of them
        first(limit + UNCOUNTED)
        second(UNCOUNTED)
