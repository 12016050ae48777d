"""Contestants take turns in one run: on a shared machine only ratios within a run mean anything."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    after: Callable[[Mapping[str, list[float]]], object] = lambda _: None,
) -> dict[str, list[float]]:
    """Seconds of each call, `rounds` for each contestant, their order drawn anew every round.

    `after` each round is told those there are.
    """
    for _ in range(warmup):
        for run in contestants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(contestants), len(contestants)):
            started = time.perf_counter()
            contestants[name]()
            seconds[name].append(time.perf_counter() - started)
        after(seconds)
    return seconds


def rates(seconds: Mapping[str, list[float]], amount: int, reference: str) -> dict[str, dict[str, float]]:
    """Per contestant: the median rate (`amount` a call), and the median over rounds of its ratio to `reference`."""
    return {
        name: {
            "per_second": round(amount / statistics.median(times), 1),
            f"times_{reference}": round(
                statistics.median(theirs / own for own, theirs in zip(times, seconds[reference], strict=True)), 2
            ),
        }
        for name, times in seconds.items()
    }
