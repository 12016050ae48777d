"""The cheapest effort that reaches the recall target, found on the index itself against exact search."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from serving.indexes.exact import nearest
from serving.indexes.kind import BuildError, Pause
from serving.indexes.main import EXACT_ROWS, MEASURED_K, Main, Marks, Tuning
from serving.indexes.ranking import Rows
from serving.ports import Floats, Ranking

QUERIES = 400
"""Vectors that are held out to be searched for, before the index has them too."""
SHARES = (1.0, 0.5, 0.05, 0.005)
"""Of the vectors, drawn at random, that a filter lets pass."""
CONFIDENCE = 1.64
"""Standard errors by which the recall measured must lie above the target: right 19 times of 20."""


def most_queries(count: int) -> int:
    """Of `count` vectors; at most a tenth of them."""
    return min(QUERIES, count // 10)


def held_out(count: int) -> Rows:
    """Which of `count` vectors, sorted."""
    return np.sort(np.random.default_rng(0).choice(count, most_queries(count), replace=False))


def tune(main: Main, queries: Floats, target: float, pause: Pause, shares: Sequence[float] = SHARES) -> Tuning:
    """Measure `main` at each share with (Q, D) `queries` that it does not hold; see docs/adr/0019.

    Raises:
        BuildError: no effort reaches the target where nothing is filtered; the message says what was reached.
    """
    assert main.approximate is not None, "exact search needs no tuning"
    rng = np.random.default_rng(1)
    count = len(main.keys)
    efforts: dict[float, int] = {}
    recalls: dict[float, float] = {}
    for share in shares:
        marks = Marks(count, live=rng.random(count) < share)
        recalls[share] = 1.0
        if marks.count <= EXACT_ROWS and share < 1:
            continue
        truth = nearest(main.keys, main.vectors, queries, MEASURED_K, marks.rows)
        effort, recall = _Trial(main, queries, truth, target, pause).cheapest(marks.bitmap)
        if effort is not None:
            efforts[share], recalls[share] = effort, recall
        elif share == 1.0:
            raise BuildError(f"{main.approximate.kind.name} reaches a recall of {recall:.3f}, not surely {target:g}")
    return Tuning(target, len(queries), efforts, recalls)


def recall(found: Sequence[Ranking], truth: Sequence[Ranking]) -> Floats:
    """Of each query the part of the true hits that was found; who ties with the last of them is as good as it."""
    parts = [
        np.count_nonzero(one.scores >= true.scores[-1]) / len(true.scores) if len(true.scores) else 1.0
        for one, true in zip(found, truth, strict=True)
    ]
    return np.minimum(parts, 1.0)


class _Trial:
    """One share of the rows."""

    def __init__(self, main: Main, queries: Floats, truth: Sequence[Ranking], target: float, pause: Pause) -> None:
        self._main = main
        self._queries = queries
        self._truth = truth
        self._target = target
        self._pause = pause

    def cheapest(self, bitmap: NDArray[np.uint8] | None) -> tuple[int | None, float]:
        """By bisection: recall grows with effort. None and the best recall there is, if that does not reach it."""
        efforts = self._main.efforts()
        low, high, reached = 0, len(efforts) - 1, None
        recall_of_best = 0.0
        while low <= high:
            self._pause()
            middle = (low + high) // 2
            found = recall(self._main.candidates(self._queries, MEASURED_K, efforts[middle], bitmap), self._truth)
            mean, error = float(found.mean()), float(found.std() / sqrt(len(found)))
            if mean - CONFIDENCE * error >= self._target:
                reached, high, recall_of_best = efforts[middle], middle - 1, mean
            else:
                low = middle + 1
                if reached is None:
                    recall_of_best = mean
        return reached, recall_of_best
