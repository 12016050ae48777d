"""Search for the cheapest effort that reaches the recall target, measured on the index against exact search."""

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
"""Maximum vectors that are held out as queries, before they are added to the index."""
SHARES = (1.0, 0.5, 0.05, 0.005)
"""Shares of the vectors, drawn at random, that a filter lets pass."""
CONFIDENCE = 1.64
"""Standard errors by which the measured recall must exceed the target: 95 % confidence, one-sided."""


def most_queries(count: int) -> int:
    """Return how many of `count` vectors to hold out: at most a tenth."""
    return min(QUERIES, count // 10)


def held_out(count: int) -> Rows:
    """Return the sorted rows of `count` vectors that are held out."""
    return np.sort(np.random.default_rng(0).choice(count, most_queries(count), replace=False))


def tune(main: Main, queries: Floats, target: float, pause: Pause, shares: Sequence[float] = SHARES) -> Tuning:
    """Measure `main` at each share with (Q, D) `queries` that it does not contain; see docs/adr/0019.

    Raises:
        BuildError: no effort reaches the target without a filter; the message gives the recall that was reached.
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
    """Return each query's share of true hits that was found. Ties with the last true hit count as hits."""
    parts = [
        np.count_nonzero(one.scores >= true.scores[-1]) / len(true.scores) if len(true.scores) else 1.0
        for one, true in zip(found, truth, strict=True)
    ]
    return np.minimum(parts, 1.0)


class _Trial:
    """Measurement at one share of the rows."""

    def __init__(self, main: Main, queries: Floats, truth: Sequence[Ranking], target: float, pause: Pause) -> None:
        self._main = main
        self._queries = queries
        self._truth = truth
        self._target = target
        self._pause = pause

    def cheapest(self, bitmap: NDArray[np.uint8] | None) -> tuple[int | None, float]:
        """Find the cheapest effort by bisection, because recall grows with effort; return it and its recall.

        If no effort reaches the target, return None and the recall of the highest effort.
        """
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
