"""Summary of a study: means over seeds, and tests of whether differences between arms exceed chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from scipy.special import stdtrit

from training.evaluation.bootstrap import LEVEL, RESAMPLES, Comparison, Resampled, resample, resample_means
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import STS_TASKS
from training.evaluation.retrieval import MEASURES
from training.studies.results import RUNS, Result
from training.studies.scores import (
    COSINES_FILE,
    DEV,
    KINDS,
    RETRIEVAL_FILE,
    TRANSFER_FILE,
    Arrays,
    load_arrays,
    task_of,
)
from training.studies.trial import StudyError

DECIMALS = 2
"""Number of decimals that are shown.

The order of floating-point sums changes cosines only in the sixth decimal, so it does not change the shown decimals.
"""

NOTHING_SHARED = "the results share no task, so there is nothing to compare"

CRITERIA = {"known_item_ndcg10": "known-item nDCG@10", "self_retrieval_mrr10": "self-retrieval MRR@10"}
"""Criteria that need no labels, by their names in a run's curve."""
FEWEST_RANKED = 5
"""Minimum number of runs for a rank correlation."""

# Metrics that compare the arms of a study. Each metric is a mean over tasks, with a bootstrap over examples.


@dataclass(frozen=True)
class Metric:
    """A kind of score, such as accuracy, and the tasks that have it."""

    name: str
    title: str
    unit: str
    tasks: tuple[str, ...]
    called: str
    """Words after the number in a phrase such as "mean of 7 tasks"."""
    examples: str
    """Name of the examples that the bootstrap resamples."""
    fixed: str
    """Description of everything that the bootstrap keeps fixed."""
    file: str
    """File of a run with two kinds of arrays (see `KINDS`): the encoder's results and the human judgements."""
    resample: Callable[[Sequence[Arrays], Arrays, int], Resampled]
    """Bootstrap function of the encoders' arrays, the human arrays and the number of resamples."""
    dev: str | None = None
    """Task whose score selected the weights. The metric uses this task only if the results share no other task."""

    def shared(self, results: Sequence[Result]) -> tuple[str, ...]:
        """Return the metric's tasks that all results have.

        If there is no such task, return the metric's dev task. If the metric has no dev task, or a result lacks it,
        return an empty tuple.
        """
        found = set.intersection(*(set(result.scores) for result in results))
        stand_in = (self.dev,) if self.dev is not None and self.dev in found else ()
        return tuple(task for task in self.tasks if task in found) or stand_in

    def arrays(self, results: Sequence[Result], study: Path, tasks: Sequence[str]) -> tuple[dict[str, Arrays], Arrays]:
        """Return two mappings: the encoders' arrays by run id and task, and the human judgements by task.

        Runs without this metric's file are left out. The human judgements must be equal in all runs.

        Raises:
            StudyError: a file is damaged or lacks a task, or the human judgements of two runs differ.
        """
        said: dict[str, Arrays] = {}
        truth: Arrays = {}
        kinds = KINDS[self.file]
        for result in results:
            file = study / RUNS / result.id / self.file
            if result.id in said or not file.exists():
                continue
            found, theirs = load_arrays(file, *kinds)
            if missing := [task for task in tasks if task not in found or task not in theirs]:
                raise StudyError(f"{file}: no {kinds[0]} of {missing[0]}, which the results have")
            truth = truth or {task: theirs[task] for task in tasks}
            if changed := [task for task in tasks if not np.array_equal(theirs[task], truth[task])]:
                raise StudyError(f"{file}: the human {kinds[1]} of {changed[0]} differ from those of the first run")
            said[result.id] = {task: found[task] for task in tasks}
        return said, truth


def _examples(runs: Sequence[Arrays], labels: Arrays, resamples: int) -> Resampled:
    hits = [{task: predicted == labels[task] for task, predicted in run.items()} for run in runs]
    return resample_means(hits, resamples)


STS = Metric(
    name="sts",
    title="Semantic textual similarity",
    unit="Spearman × 100",
    tasks=tuple(STS_TASKS),
    called="tasks",
    examples="sentence pairs",
    fixed="encoders",
    file=COSINES_FILE,
    resample=resample,
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
    resample=_examples,
)


def metrics(results: Sequence[Result]) -> list[Metric]:
    """Return the metrics for which a result has a score.

    Each retrieval measure is a metric of its own, whose tasks are the collections.
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
        resample=lambda runs, _relevant, resamples: resample_means(runs, resamples),
    )


@dataclass(frozen=True)
class SeedScores:
    """The scores of an arm, one for each seed."""

    values: tuple[float, ...]
    seedless: bool = False
    """True for an untrained encoder, which does not depend on the seed."""

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Return the standard deviation over seeds, with divisor n - 1, or None for one seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def error(self) -> float | None:
        """Return the standard error of the mean. It is 0 for an untrained encoder, and None for one training seed."""
        if self.seedless:
            return 0.0
        return None if self.deviation is None else self.deviation / math.sqrt(len(self.values))

    def __str__(self) -> str:
        return self.rounded(DECIMALS)

    def rounded(self, decimals: int) -> str:
        deviation = self.deviation
        return f"{self.mean:.{decimals}f}" + ("" if deviation is None else f" ± {deviation:.{decimals}f}")


@dataclass(frozen=True)
class Row:
    """Results of an arm with one combination of values on its axes, over all seeds."""

    label: str
    results: tuple[Result, ...]
    mean: SeedScores
    """Mean over tasks. Each task's score is first rounded to two decimals, as in the papers."""
    dev: SeedScores | None
    """Score on the metric's dev task, or None if there is no such task or a result lacks it."""
    interval: tuple[float, float] | None
    """Bootstrap interval of the mean over examples, or None if the per-example scores of a run are missing."""
    gain: Comparison | None
    """Gain over the baseline arm, or None for the baseline itself.

    The gain has a bootstrap interval if this machine has the per-example scores of this arm and the baseline. Without
    these scores, it has the interval of Welch's t-test over seeds, or is None if `noise` is None.
    """
    noise: float | None
    """Smallest gain that is significant over seeds (see `welch`).

    It is None if this arm or the baseline was trained with only one seed.
    """

    @property
    def verdict(self) -> str:
        """The verdict on the gain, in words: whether its interval is above 0, is below 0, or contains 0.

        A bootstrap interval does not show the differences between seeds. If such an interval does not contain 0, the
        verdict therefore also says when the gain is smaller than `noise`, or when `noise` is None. If `gain` is None,
        as for the baseline, the verdict is empty.
        """
        if self.gain is None:
            return ""
        if self.undecided:
            return "interval contains 0"
        words = "better" if self.gain.low > 0 else "worse"
        if self.gain.better is None:
            return words
        if self.noise is None:
            return f"{words}, by one seed"
        return f"{words}, within the seeds' noise" if abs(self.gain.difference) < self.noise else words

    @property
    def undecided(self) -> bool:
        """True if the interval of the gain contains 0 at the displayed precision."""
        return self.gain is not None and round(self.gain.low, DECIMALS) <= 0 <= round(self.gain.high, DECIMALS)


@dataclass(frozen=True)
class Summary:
    """A study's results for one metric, with a row for each arm."""

    metric: Metric
    rows: tuple[Row, ...]
    against: str
    """Label of the baseline arm."""
    tasks: tuple[str, ...]
    """Tasks over which the mean is computed. Every result has these tasks."""

    @property
    def measure(self) -> str:
        """Return a name for the mean score, such as "mean of 7 tasks", or the name of the only task."""
        return f"mean of {len(self.tasks)} {self.metric.called}" if len(self.tasks) > 1 else self.tasks[0]

    @property
    def title(self) -> str:
        """Return `measure` with a capital letter."""
        return self.measure[0].upper() + self.measure[1:]

    def agreement(self, criterion: str) -> tuple[float, int] | None:
        """Return the rank correlation between a criterion and the mean over tasks, and the number of runs.

        The correlation is Spearman's, over the runs that have the criterion. A run's value of the criterion is from the
        step whose weights were selected. The result is None if fewer than `FEWEST_RANKED` runs have the criterion, or
        if all values of the criterion or all means are equal.
        """
        from scipy.stats import spearmanr  # It takes half a second to import.

        pairs = [
            (point[criterion], _mean(result, self.tasks))
            for row in self.rows
            for result in row.results
            for point in result.curve
            if point["step"] == result.best_step and point.get(criterion) is not None
        ]
        if len(pairs) < FEWEST_RANKED or any(len(set(values)) == 1 for values in zip(*pairs, strict=True)):
            return None
        return float(spearmanr(pairs).statistic), len(pairs)


def summaries(
    results: Sequence[Result], study: Path, *, against: str | None = None, resamples: int = RESAMPLES
) -> list[Summary]:
    """Return a summary for each metric whose results share a task. It compares every arm with a baseline arm.

    The baseline has the label `against`. If `against` is None or has no result for a metric, the baseline for this
    metric is the first label with a result. `metrics_left_out` reports the metrics that are not summarised.

    Raises:
        StudyError: no result has the label `against`, no metric has results that share a task, or the stored arrays
            do not match the results.
        EvaluationError: see `summarise`.
    """
    labels = {result.label: None for result in results}
    if against is not None and against not in labels:
        raise StudyError(f"--against {against}: none of {'; '.join(labels)}")
    found = []
    for metric in metrics(results):
        judged = _scored_by(results, metric)
        if not metric.shared(judged):
            continue
        there = against if against in {result.label for result in judged} else None
        found.append(summarise(judged, study, metric=metric, against=there, resamples=resamples))
    if not found:
        raise StudyError(NOTHING_SHARED)
    return found


def metrics_left_out(results: Sequence[Result]) -> list[str]:
    """Return a line of text for each metric that `summaries` leaves out because the metric's results share no task."""
    return [
        f"{metric.title}: left out, because its runs share no task."
        for metric in metrics(results)
        if not metric.shared(_scored_by(results, metric))
    ]


def summarise(
    results: Sequence[Result],
    study: Path | None,
    *,
    metric: Metric = STS,
    against: str | None = None,
    resamples: int = RESAMPLES,
) -> Summary:
    """Compare every arm with the baseline, whose label is `against` or, by default, the first label.

    Results with the same label are the seeds of one arm.

    Args:
        study: folder with the per-example scores of the runs. If it is None, only the means of the arms' seeds are
            compared.

    Raises:
        StudyError: the results share no task, or a file of per-example scores is damaged, lacks a task, or has other
            human judgements than the first file.
        EvaluationError: per-example scores are not valid, or their number differs between runs.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.label, []).append(result)
    against = next(iter(groups)) if against is None else against
    tasks = metric.shared(results)
    if not tasks:
        raise StudyError(NOTHING_SHARED)
    means = {
        label: SeedScores(tuple(_mean(each, tasks) for each in of), seedless=all(each.untrained for each in of))
        for label, of in groups.items()
    }
    kept, truth = ({}, {}) if study is None else metric.arrays(results, study, tasks)
    drawn = {
        label: metric.resample([kept[each.id] for each in of], truth, resamples)
        for label, of in groups.items()
        if all(each.id in kept for each in of)
    }
    rows = []
    for label, of in groups.items():
        here, there = drawn.get(label), drawn.get(against)
        noise = welch(means[label], means[against])
        gain = None
        if label != against and here and there:
            gain = here.against(there)
        elif label != against and noise is not None:
            difference = means[label].mean - means[against].mean
            gain = Comparison(difference, difference - noise, difference + noise)
        rows.append(
            Row(
                label=label,
                results=tuple(of),
                mean=means[label],
                dev=_dev(of, metric),
                interval=here.interval() if here else None,
                gain=gain,
                noise=noise,
            )
        )
    return Summary(metric, tuple(rows), against, tasks)


def _scored_by(results: Sequence[Result], metric: Metric) -> list[Result]:
    return [result for result in results if metric.shared([result])]


def _mean(result: Result, tasks: Sequence[str]) -> float:
    return fmean(round(result.scores[task], 2) for task in tasks)


def _dev(results: Sequence[Result], metric: Metric) -> SeedScores | None:
    scores = [result.scores.get(metric.dev) for result in results] if metric.dev else [None]
    known = tuple(score for score in scores if score is not None)
    return SeedScores(known) if len(known) == len(scores) else None


def welch(mine: SeedScores, theirs: SeedScores) -> float | None:
    """Return the smallest difference between two arms' mean scores that Welch's t-test (1947) finds significant.

    Degrees of freedom are Satterthwaite's. The scores of an untrained encoder have no variance, so the test against
    such an arm is a one-sample t-test. The result is None if an arm was trained with only one seed, and 0 if the scores
    of neither arm vary.
    """
    if mine.error is None or theirs.error is None:
        return None
    variance = mine.error**2 + theirs.error**2
    if variance == 0:
        return 0.0
    parts = [(each.error**2 / variance, len(each.values) - 1) for each in (mine, theirs) if each.error]
    freedom = 1 / sum(share**2 / seeds for share, seeds in parts)
    return float(stdtrit(freedom, (1 + LEVEL) / 2)) * math.sqrt(variance)
