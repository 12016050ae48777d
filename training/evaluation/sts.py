"""Semantic textual similarity as in SentEval: correlation between cosines and human scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from training.evaluation.pairs import Subsets, texts
from training.evaluation.vectors import ConstantError, Encode, unit_vectors

STSB_DEV_METRIC = "stsb_dev_spearman"

Cosines = Mapping[str, Mapping[str, NDArray[np.float64]]]
"""Cosines of the pairs (n,), by task and subset."""


@dataclass(frozen=True)
class Correlation:
    """Spearman's and Pearson's correlations, times 100."""

    spearman: float
    pearson: float
    pairs: int


@dataclass(frozen=True)
class Aggregates:
    """A task's correlation times 100, aggregated over the task's subsets in three ways."""

    all: float
    """Correlation over all pairs together. Papers report this value."""
    mean: float
    """Mean of the subsets' correlations."""
    wmean: float
    """Mean of the subsets' correlations, weighted by number of pairs."""


@dataclass(frozen=True)
class TaskScore:
    """The correlations of an encoder on a task."""

    spearman: Aggregates
    pearson: Aggregates
    pairs: int
    subsets: Mapping[str, Correlation]


def evaluate(encode: Encode, tasks: Mapping[str, Subsets]) -> dict[str, TaskScore]:
    """Return the scores of each task.

    Distinct texts are encoded once.

    Raises:
        EvaluationError: a vector is not finite.
        ConstantError: all cosines or all human scores of a subset are equal, so that the correlation is undefined.
    """
    return score(cosines(encode, tasks), tasks)


def cosines(encode: Encode, tasks: Mapping[str, Subsets]) -> Cosines:
    """Compute the cosines (n,) of the pairs of each subset of each task, in the order of the pairs.

    Raises:
        EvaluationError: a vector is not finite.
    """
    sentences = texts(tasks)
    unit = unit_vectors(encode, sentences)
    row = {text: i for i, text in enumerate(sentences)}
    return {
        task: {
            name: _cosines(unit[[row[pair.a] for pair in pairs]], unit[[row[pair.b] for pair in pairs]])
            for name, pairs in subsets.items()
        }
        for task, subsets in tasks.items()
    }


def score(cosines: Cosines, tasks: Mapping[str, Subsets]) -> dict[str, TaskScore]:
    """Return the scores of each task, from the `cosines` of its pairs.

    Raises:
        ConstantError: all cosines or all human scores of a subset are equal.
    """
    return {
        task: aggregate(
            cosines[task],
            {name: np.array([pair.gold for pair in pairs]) for name, pairs in subsets.items()},
            task=task,
        )
        for task, subsets in tasks.items()
    }


def aggregate(
    cosines: Mapping[str, NDArray[np.float64]], golds: Mapping[str, NDArray[np.float64]], *, task: str
) -> TaskScore:
    """Return a task's scores, from the cosines (n,) and human scores (n,) of each of its subsets.

    Raises:
        ConstantError: all cosines or all human scores of a subset are equal.
    """
    subsets = {name: _correlation(cosines[name], golds[name], where=f"{task} {name}") for name in cosines}
    together = _correlation(
        np.concatenate([cosines[name] for name in cosines]),
        np.concatenate([golds[name] for name in cosines]),
        where=task,
    )
    weights = [subset.pairs for subset in subsets.values()]

    def aggregates(kind: str) -> Aggregates:
        each = [getattr(subset, kind) for subset in subsets.values()]
        return Aggregates(getattr(together, kind), fmean(each), fmean(each, weights))

    return TaskScore(aggregates("spearman"), aggregates("pearson"), together.pairs, subsets)


def mean_of_tasks(scores: Mapping[str, TaskScore]) -> float:
    """Return the mean over tasks as in the papers. Each task's "all" Spearman is first rounded to two decimals."""
    return fmean(round(score.spearman.all, 2) for score in scores.values())


def table(scores: Mapping[str, TaskScore]) -> str:
    """Return two aligned lines: the names of the tasks and "mean", and below them the scores.

    The score of a task is Spearman x 100 over the pairs of all its subsets together, the "all" setting of the papers.
    """
    cells = {task: f"{score.spearman.all:.2f}" for task, score in scores.items()}
    cells["mean"] = f"{mean_of_tasks(scores):.2f}"
    widths = {task: max(len(task), len(cell)) for task, cell in cells.items()}
    rows = ({task: task for task in cells}, cells)
    return "\n".join("  ".join(row[task].rjust(width) for task, width in widths.items()) for row in rows)


def _cosines(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosine of each row of `a` with the same row of `b`.

    Cosines are rounded, so that all pairs of identical sentences have the same rank. Without rounding, the ranks of
    these pairs would depend on the last bits of their cosines.
    """
    cosines: NDArray[np.float64] = np.einsum("nd,nd->n", a, b).round(12)
    return cosines


def _correlation(cosines: NDArray[np.float64], golds: NDArray[np.float64], *, where: str) -> Correlation:
    for what, values in (("cosines", cosines), ("people's scores", golds)):
        if len(values) < 2 or np.ptp(values) == 0:
            raise ConstantError(f"{where}: all {what} are equal, so there is nothing to correlate")
    from scipy.stats import pearsonr, spearmanr  # The import takes a second, and only evaluation needs it.

    return Correlation(
        spearman=100 * float(spearmanr(cosines, golds).statistic),
        pearson=100 * float(pearsonr(cosines, golds).statistic),
        pairs=len(golds),
    )
