"""Interleaved rounds of contestants. On a shared machine only ratios within a run are meaningful."""

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
    """Return the seconds of each call, `rounds` per contestant, in a new random order every round.

    `after` receives the seconds so far after each round.
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
    """Return each contestant's median rate (`amount` per call), and its median ratio to `reference` over rounds."""
    return {
        name: {
            "per_second": round(amount / statistics.median(times), 1),
            f"times_{reference}": round(
                statistics.median(theirs / own for own, theirs in zip(times, seconds[reference], strict=True)), 2
            ),
        }
        for name, times in seconds.items()
    }
