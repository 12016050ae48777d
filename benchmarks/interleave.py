"""Interleaved measurements of several functions. On a shared machine, only ratios within one run are meaningful."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def interleaved(
    contestants: Mapping[str, Callable[[], T]],
    rounds: int,
    warmup: int = 1,
    after: Callable[[dict[str, list[T]]], object] = lambda _: None,
) -> dict[str, list[T]]:
    """Return the results of `rounds` calls of each function, in a new random order in each round.

    After each round, `after` is called with the results so far.
    """
    for _ in range(warmup):
        for run in contestants.values():
            run()
    results: dict[str, list[T]] = {name: [] for name in contestants}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(contestants), len(contestants)):
            results[name].append(contestants[name]())
        after(results)
    return results


def seconds_of(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


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
