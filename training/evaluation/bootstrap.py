"""Bootstrap intervals over test pairs or examples, and tests of whether one encoder is better than another.

The percentile bootstrap (Efron and Tibshirani 1993, chapter 13) draws n pairs with replacement from a test set of n
pairs, many times, and recomputes every score. Compared encoders are scored on the same resampled pairs, so a pair that
is hard for both encoders does not affect the comparison. The intervals cover the uncertainty from the choice of test
pairs. They do not cover the uncertainty from the training seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.evaluation.vectors import EvaluationError

Values = NDArray[np.floating[Any]]
Tasks = Mapping[str, Values]
"""Values (n,) of the pairs of each task."""
Gains = Mapping[str, NDArray[Any]]
"""Scores (n,) from 0 to 1 of the examples of each task, such as 1 for a correct class, or a query's retrieval score."""

RESAMPLES = 1000
LEVEL = 0.95
"""Confidence level of all intervals."""
AT_ONCE = 1 << 19
"""Maximum number of elements (pairs times resamples) in one array, so that it fits in the processor's cache."""


@dataclass(frozen=True)
class Comparison:
    """Difference of the mean scores of two groups of encoders: the first group's mean minus the second group's."""

    difference: float
    low: float
    high: float
    better: float | None = None
    """Share of resamples in which the first group is better. Ties count half. None without resamples."""


@dataclass(frozen=True)
class Resampled:
    """Mean score over encoders and tasks, on the test data and on each resample of the test data."""

    mean: float
    """Mean of Spearman, accuracy or another score over tasks and encoders, x 100."""
    means: NDArray[np.float64]
    """The mean score on each resample, (B,)."""

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the ends of the central interval that contains the share `level` of the resampled scores."""
        return _percentiles(self.means, level)

    def against(self, other: Resampled, level: float = LEVEL) -> Comparison:
        """Compare this mean score with that of `other`. Both need the same tasks, number of resamples and seed."""
        differences = self.means - other.means
        better = float(np.mean((differences > 0) + 0.5 * (differences == 0)))
        return Comparison(self.mean - other.mean, *_percentiles(differences, level), better)


def resample(runs: Sequence[Tasks], golds: Tasks, resamples: int = RESAMPLES, *, seed: int = 0) -> Resampled:
    """Return the mean Spearman correlation over encoders and tasks, on the test pairs and on each resample.

    The pairs of each task are resampled separately. With the same seed, the same pairs are drawn. `runs` has, for each
    encoder, the cosines (n,) of each task's pairs. `golds` has the human scores (n,) of each task's pairs.

    Raises:
        EvaluationError: the numbers of cosines and human scores of a task differ; a value is not finite; or all cosines
            or all human scores of a task are equal.
    """
    _check(runs, golds)
    judges = {task: [weighted_spearman(run[task], scores) for run in runs] for task, scores in golds.items()}
    means = np.zeros(resamples)
    for task, these, weights in _redrawn({task: len(scores) for task, scores in golds.items()}, resamples, seed):
        for judge in judges[task]:
            means[these] += judge(weights)
    once = [judges[task][i](np.ones((len(golds[task]), 1))) for i in range(len(runs)) for task in golds]
    return Resampled(100 * float(np.mean(once)), 100 * means / (len(runs) * len(golds)))


def resample_means(runs: Sequence[Gains], resamples: int = RESAMPLES, *, seed: int = 0) -> Resampled:
    """Return the mean score over encoders and tasks, on the test examples and on each resample.

    The score of a task is the mean of its examples' scores. The examples of each task are resampled separately. `runs`
    has, for each encoder, the scores of each task's examples.

    Raises:
        EvaluationError: a task has no example, or encoders have different tasks or different numbers of examples.
    """
    sizes = {task: len(gains) for task, gains in runs[0].items()}
    for run in runs:
        if (found := {task: len(gains) for task, gains in run.items()}) != sizes or not all(sizes.values()):
            raise EvaluationError(f"encoders with the examples {found} and {sizes} can't be compared")
    # The mean over encoders has the shape (n,).
    shares = {task: np.mean([run[task] for run in runs], axis=0) for task in sizes}
    means = np.zeros(resamples)
    for task, these, weights in _redrawn(sizes, resamples, seed):
        means[these] += shares[task] @ weights / sizes[task]
    return Resampled(100 * float(np.mean([each.mean() for each in shares.values()])), 100 * means / len(sizes))


def compare_means(a: Values, b: Values) -> Comparison:
    """Return the mean of `a` minus the mean of `b`, with an interval from common resamples.

    `a` and `b` are values (n,) of the same pairs or queries.
    """
    rows = np.random.default_rng(0).integers(len(a), size=(RESAMPLES, len(a)))
    first, second = (Resampled(float(each.mean()), each[rows].mean(axis=1)) for each in (a, b))
    return first.against(second)


def weighted_spearman(cosines: Values, golds: Values) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Return a function from weights (n, B) to B Spearman correlations, one for each resample.

    A weight is the number of times that a resample contains a pair. If all cosines or all human scores in a resample
    are equal, the correlation is 0.

    Tied values get their mean rank. This rank is w + (v + 1) / 2, where w is the total weight of smaller values, and v
    is the total weight of equal values. Ranks are multiples of 1/2, so sums of products of two ranks are multiples of
    1/4. These sums are exact in float64, because they are far below 2^53.
    """
    rank_cosines, rank_golds = _ranker(cosines), _ranker(golds)

    def correlate(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        total = weights.sum(axis=0)
        middle = (total + 1) / 2  # The mean rank of all pairs is the same with and without ties.
        x, y = rank_cosines(weights) - middle, rank_golds(weights) - middle
        spread = np.sqrt(np.einsum("nb,nb,nb->b", weights, x, x) * np.einsum("nb,nb,nb->b", weights, y, y))
        together = np.einsum("nb,nb,nb->b", weights, x, y)
        correlations: NDArray[np.float64] = np.divide(together, spread, out=np.zeros_like(spread), where=spread > 0)
        return correlations

    return correlate


def _ranker(values: Values) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Return a function that computes the mid-ranks of `values` (n,) in each of B resamples.

    The function takes weights (n, B) and returns mid-ranks (n, B). A weight is the number of times that a resample
    contains a value. The values are sorted only once, when the function is created.
    """
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    last = np.cumsum(sizes) - 1

    def ranks(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        until = weights[order].cumsum(axis=0)[last]  # (groups, B)
        before = np.concatenate([np.zeros_like(until[:1]), until[:-1]])
        middles: NDArray[np.float64] = ((before + until + 1) / 2)[group]
        return middles

    return ranks


def _redrawn(sizes: Mapping[str, int], resamples: int, seed: int) -> Iterator[tuple[str, slice, NDArray[np.float64]]]:
    """Draw the resamples of each task in blocks of b resamples.

    Yield, for each block, the task, the slice of the block's resamples, and an array (n, b). The array tells how often
    each of the task's n examples is drawn in each of the b resamples.
    """
    for number, (task, size) in enumerate(sizes.items()):
        draw = np.random.default_rng([seed, number])
        at_once = max(1, AT_ONCE // size)
        for start in range(0, resamples, at_once):
            end = min(start + at_once, resamples)
            count = end - start
            drawn = draw.integers(0, size, size=(count, size))
            flat = (drawn * count + np.arange(count)[:, None]).ravel()
            weights = np.bincount(flat, minlength=size * count).reshape(size, count).astype(np.float64)
            yield task, slice(start, end), weights


def _percentiles(values: NDArray[np.float64], level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _check(runs: Sequence[Tasks], golds: Tasks) -> None:
    for task, scores in golds.items():
        for cosines in (run[task] for run in runs):
            if cosines.shape != scores.shape or cosines.ndim != 1:
                raise EvaluationError(f"{task}: cosines of shape {cosines.shape} for scores of shape {scores.shape}")
            for what, values in (("cosines", cosines), ("people's scores", scores)):
                if not np.isfinite(values).all():
                    raise EvaluationError(f"{task}: {what} contain NaN or infinity")
                if len(values) < 2 or np.ptp(values) == 0:
                    raise EvaluationError(f"{task}: all {what} are equal, so there is nothing to correlate")
