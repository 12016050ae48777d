"""Metrics that compare the arms of a study. Each is a mean over tasks, with a bootstrap over examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.evaluation.bootstrap import Resampled, resample, resample_means
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import STS_TASKS
from training.evaluation.retrieval import MEASURES
from training.study.arrays import Arrays, kept
from training.study.judgement import (
    COSINES,
    COSINES_FILE,
    DEV,
    FOUND,
    GOLDS,
    LABELS,
    PREDICTED,
    RELEVANT,
    RETRIEVAL_FILE,
    TRANSFER_FILE,
    task_of,
)
from training.study.results import RUNS, Result
from training.study.trial import StudyError


@dataclass(frozen=True)
class Metric:
    """A score that several tasks share."""

    name: str
    title: str
    unit: str
    tasks: tuple[str, ...]
    called: str
    """Name of the tasks, as it follows their number in "mean of 7 …"."""
    examples: str
    """Name of the examples that the bootstrap resamples."""
    fixed: str
    """Name of everything that the bootstrap keeps fixed."""
    file: str
    """File of a run with two kinds of arrays: the encoder's results and the human judgements."""
    kinds: tuple[str, str]
    resample: Callable[[Sequence[Arrays], Arrays, int], Resampled]
    """Bootstrap function. Its arguments are the encoders' arrays, the human arrays and the number of resamples."""
    dev: str | None = None
    """Task that chose the weights. The metric uses only this task if results share no other task."""

    def shared(self, results: Sequence[Result]) -> tuple[str, ...]:
        """Return the metric's tasks that all results have, or the dev task if they share no other."""
        found = set.intersection(*(set(result.scores) for result in results))
        stand_in = (self.dev,) if self.dev is not None and self.dev in found else ()
        return tuple(task for task in self.tasks if task in found) or stand_in

    def arrays(self, results: Sequence[Result], study: Path, tasks: Sequence[str]) -> tuple[dict[str, Arrays], Arrays]:
        """Read the encoders' arrays by id and task, and the human arrays by task, which must be equal in all runs.

        Raises:
            StudyError: a file is damaged or lacks a task, or its human judgements differ.
        """
        said: dict[str, Arrays] = {}
        truth: Arrays = {}
        for result in results:
            file = study / RUNS / result.id / self.file
            if result.id in said or not file.exists():
                continue
            found, theirs = kept(file, *self.kinds)
            if missing := [task for task in tasks if task not in found or task not in theirs]:
                raise StudyError(f"{file}: no {self.kinds[0]} of {missing[0]}, which the results have")
            truth = truth or {task: theirs[task] for task in tasks}
            if changed := [task for task in tasks if not np.array_equal(theirs[task], truth[task])]:
                raise StudyError(f"{file}: people's {self.kinds[1]} of {changed[0]} are not those of the first run")
            said[result.id] = {task: found[task] for task in tasks}
        return said, truth


def _pairs(runs: Sequence[Arrays], golds: Arrays, resamples: int) -> Resampled:
    return resample(runs, golds, resamples=resamples)


def _examples(runs: Sequence[Arrays], labels: Arrays, resamples: int) -> Resampled:
    hits = [{task: predicted == labels[task] for task, predicted in run.items()} for run in runs]
    return resample_means(hits, resamples=resamples)


def _queries(runs: Sequence[Arrays], _relevant: Arrays, resamples: int) -> Resampled:
    return resample_means(runs, resamples=resamples)


STS = Metric(
    name="sts",
    title="Semantic textual similarity",
    unit="Spearman × 100",
    tasks=tuple(STS_TASKS),
    called="tasks",
    examples="sentence pairs",
    fixed="encoders",
    file=COSINES_FILE,
    kinds=(COSINES, GOLDS),
    resample=_pairs,
    dev=DEV,
)
TRANSFER = Metric(
    name="transfer",
    title="Transfer tasks",
    unit="Accuracy × 100",
    tasks=tuple(TRANSFER_TASKS),
    called="transfer tasks",
    examples="tested examples",
    fixed="encoders and the classifiers on them",
    file=TRANSFER_FILE,
    kinds=(PREDICTED, LABELS),
    resample=_examples,
)


def metrics(results: Sequence[Result]) -> list[Metric]:
    """Return the metrics for which there are results.

    Each measure of retrieval is a metric: its mean over collections.
    """
    known = (STS, TRANSFER, *(_retrieval(measure, results) for measure in MEASURES))
    return [metric for metric in known if any(metric.shared([result]) for result in results)]


def _retrieval(measure: str, results: Sequence[Result]) -> Metric:
    tasks = {task: None for result in results for task in result.scores if task.endswith(task_of("", measure))}
    return Metric(
        name=measure.partition("@")[0].lower(),
        title=f"Retrieval, {measure}",
        unit=f"{measure} × 100",
        tasks=tuple(tasks),
        called=f"collections' {measure}",
        examples="queries",
        fixed="encoders and documents",
        file=RETRIEVAL_FILE,
        kinds=(FOUND, RELEVANT),
        resample=_queries,
    )
