"""Interleaved measurements of several functions. On a shared machine, only ratios within one run are meaningful."""

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
    """Return the seconds of each call, with `rounds` calls of each function. Each round has a new random order.

    After each round, `after` is called with the seconds so far.
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
    """Return each function's median rate, and its median ratio to `reference` over rounds.

    `amount` is the work per call.
    """
    return {
        name: {
            "per_second": round(amount / statistics.median(times), 1),
            f"times_{reference}": round(
                statistics.median(theirs / own for own, theirs in zip(times, seconds[reference], strict=True)), 2
            ),
        }
        for name, times in seconds.items()
    }
