"""A study's summary: means over seeds, and tests of whether differences between arms exceed chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from scipy.special import stdtrit

from training.evaluation.bootstrap import Comparison, Interval
from training.study.metric import STS, Metric, metrics
from training.study.results import Result
from training.study.trial import StudyError

RESAMPLES = 1000
DECIMALS = 2
"""Decimals shown. The order of floating-point sums changes cosines only in the sixth decimal."""

NOTHING_SHARED = "the results share no task, so there is nothing to compare"

LEVEL = 0.95
"""Confidence level of all intervals, over pairs and over seeds."""


@dataclass(frozen=True)
class Spread:
    """Scores of an arm's seeds."""

    values: tuple[float, ...]
    seedless: bool = False
    """True for an untrained encoder, which does not depend on the seed."""

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Return the standard deviation with n - 1, or None for one seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def error(self) -> float | None:
        """Return the standard error of the mean, or None for one seed."""
        if self.seedless:
            return 0.0
        return None if self.deviation is None else self.deviation / math.sqrt(len(self.values))

    def __str__(self) -> str:
        deviation = self.deviation
        return f"{self.mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


@dataclass(frozen=True)
class Row:
    """Results of an arm at one combination of its axes' values, over all seeds."""

    label: str
    results: tuple[Result, ...]
    mean: Spread
    """Mean over tasks, each rounded to two decimals first, as in the papers."""
    dev: Spread | None
    """Score on the metric's dev task. None if there is no such task or a result lacks it."""
    interval: Interval | None
    """Bootstrap interval of the mean, over examples. None if no per-example scores are stored."""
    gain: Comparison | None
    """Gain over the baseline arm. None for the baseline itself, or if no per-example scores are stored."""
    noise: float | None
    """Smallest gain that is significant over seeds, see `welch`. None if either arm has one seed."""

    @property
    def verdict(self) -> str:
        """Return the conclusion in words, from the interval over examples and the noise over seeds."""
        if self.gain is None:
            return ""
        if self.undecided:
            return "interval contains 0"
        words = "better" if self.gain.low > 0 else "worse"
        if self.noise is None:
            return f"{words}, by one seed"
        return f"{words}, within the seeds' noise" if abs(self.gain.difference) < self.noise else words

    @property
    def undecided(self) -> bool:
        """Return whether the interval over examples contains 0 at the displayed precision."""
        return self.gain is not None and round(self.gain.low, DECIMALS) <= 0 <= round(self.gain.high, DECIMALS)


@dataclass(frozen=True)
class Summary:
    """A study's results by one metric, arm by arm."""

    metric: Metric
    rows: tuple[Row, ...]
    against: str
    """Label of the baseline."""
    tasks: tuple[str, ...]
    """Tasks of the mean. These are the tasks that every result has."""

    @property
    def measure(self) -> str:
        """Return a description of the mean."""
        return f"mean of {len(self.tasks)} {self.metric.called}" if len(self.tasks) > 1 else self.tasks[0]

    @property
    def title(self) -> str:
        """Return `measure` with a capital letter."""
        return self.measure[0].upper() + self.measure[1:]


def summaries(
    results: Sequence[Result], study: Path, *, against: str | None = None, resamples: int = RESAMPLES
) -> list[Summary]:
    """Summarise the results by each metric.

    The default baseline is each metric's first label; see `left_out`.

    Raises:
        StudyError: no result has the label `against`, no metric has a task that all its results share, or see
            `summarise`.
        EvaluationError: see `summarise`.
    """
    _check_known(against, {result.label: None for result in results})
    found = []
    for metric in metrics(results):
        judged = _judged(results, metric)
        if not metric.shared(judged):
            continue
        there = against if against in {result.label for result in judged} else None
        found.append(summarise(judged, study, metric=metric, against=there, resamples=resamples))
    if not found:
        raise StudyError(NOTHING_SHARED)
    return found


def left_out(results: Sequence[Result]) -> list[str]:
    """Return a line for each metric that `summaries` leaves out because its results share no task."""
    return [
        f"{metric.title}: left out, the runs that were judged by it share no task."
        for metric in metrics(results)
        if not metric.shared(_judged(results, metric))
    ]


def summarise(
    results: Sequence[Result],
    study: Path,
    *,
    metric: Metric = STS,
    against: str | None = None,
    resamples: int = RESAMPLES,
) -> Summary:
    """Compare arms with the label `against`. The default is the first label.

    Results of one label are the seeds of one arm.

    Raises:
        StudyError: no result has the label `against`, the results share no task, or the stored arrays do not match the
            results.
        EvaluationError: see `training.evaluation.bootstrap`.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.label, []).append(result)
    _check_known(against, groups)
    against = next(iter(groups)) if against is None else against
    tasks = metric.shared(results)
    if not tasks:
        raise StudyError(NOTHING_SHARED)
    means = {
        label: Spread(tuple(_mean(each, tasks) for each in of), seedless=all(each.untrained for each in of))
        for label, of in groups.items()
    }
    kept, truth = metric.arrays(results, study, tasks)
    drawn = {
        label: metric.resample([kept[each.id] for each in of], truth, resamples)
        for label, of in groups.items()
        if all(each.id in kept for each in of)
    }
    rows = []
    for label, of in groups.items():
        here, there = drawn.get(label), drawn.get(against)
        rows.append(
            Row(
                label=label,
                results=tuple(of),
                mean=means[label],
                dev=_dev(of, metric),
                interval=here.interval(LEVEL) if here else None,
                gain=here.against(there, LEVEL) if here and there and label != against else None,
                noise=welch(means[label], means[against]),
            )
        )
    return Summary(metric, tuple(rows), against, tasks)


def _judged(results: Sequence[Result], metric: Metric) -> list[Result]:
    return [result for result in results if metric.shared([result])]


def _check_known(against: str | None, labels: Mapping[str, object]) -> None:
    if against is not None and against not in labels:
        raise StudyError(f"--against {against}: none of {'; '.join(labels)}")


def _mean(result: Result, tasks: Sequence[str]) -> float:
    return fmean(round(result.scores[task], 2) for task in tasks)


def _dev(results: Sequence[Result], metric: Metric) -> Spread | None:
    scores = [result.scores.get(metric.dev) for result in results] if metric.dev else [None]
    known = tuple(score for score in scores if score is not None)
    return Spread(known) if len(known) == len(scores) else None


def welch(mine: Spread, theirs: Spread, level: float = LEVEL) -> float | None:
    """Return the smallest significant difference of the means by Welch's t-test (1947).

    Degrees of freedom are Satterthwaite's. Against an untrained encoder the test is a one-sample t-test. The result is
    None if an arm has only one seed, and 0 if scores vary in neither arm.
    """
    if mine.error is None or theirs.error is None:
        return None
    variance = mine.error**2 + theirs.error**2
    if variance == 0:
        return 0.0
    parts = [(each.error**2 / variance, len(each.values) - 1) for each in (mine, theirs) if each.error]
    freedom = 1 / sum(share**2 / seeds for share, seeds in parts)
    return float(stdtrit(freedom, (1 + level) / 2)) * math.sqrt(variance)
