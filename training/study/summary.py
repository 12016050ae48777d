"""What the results of a study say: means over seeds, and whether the differences between arms are more than chance."""

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
"""Of what is shown. The same weights give other cosines in the sixth, by the order of their sums."""

NOTHING_SHARED = "the results share no task, so there is nothing to compare"

LEVEL = 0.95
"""Of the intervals, whether of sentence pairs or of seeds."""


@dataclass(frozen=True)
class Spread:
    """Of the seeds of an arm."""

    values: tuple[float, ...]
    seedless: bool = False
    """Whether it is of an encoder as it is, of which another seed has the same."""

    @property
    def mean(self) -> float:
        """Their mean."""
        return fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Their standard deviation, with n - 1; None of one seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None of one seed."""
        if self.seedless:
            return 0.0
        return None if self.deviation is None else self.deviation / math.sqrt(len(self.values))

    def __str__(self) -> str:
        deviation = self.deviation
        return f"{self.mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


@dataclass(frozen=True)
class Row:
    """An arm at one point of its axes, over its seeds."""

    label: str
    results: tuple[Result, ...]
    mean: Spread
    """Of the tasks' mean, each rounded to two decimals first, as in the papers."""
    dev: Spread | None
    """Of the metric's dev task; None where it has none or a result lacks it."""
    interval: Interval | None
    """Of the mean on other examples; None where nothing was kept of them."""
    gain: Comparison | None
    """Over the arm that all are compared with; None for itself, and where nothing was kept."""
    noise: float | None
    """How far from 0 the seeds alone may put the gain, see `welch`; None where one of the two has but one."""

    @property
    def verdict(self) -> str:
        """What the interval says, in words, and what the seeds say to that."""
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
        """Whether the examples show no difference, as far as the decimals go that are shown."""
        return self.gain is not None and round(self.gain.low, DECIMALS) <= 0 <= round(self.gain.high, DECIMALS)


@dataclass(frozen=True)
class Summary:
    """A study's results by one metric, arm by arm."""

    metric: Metric
    rows: tuple[Row, ...]
    against: str
    """The label that the others are compared with."""
    tasks: tuple[str, ...]
    """Of the mean: those that every result has."""

    @property
    def measure(self) -> str:
        """What the mean is of."""
        return f"mean of {len(self.tasks)} {self.metric.called}" if len(self.tasks) > 1 else self.tasks[0]

    @property
    def title(self) -> str:
        """The same at the head of a line."""
        return self.measure[0].upper() + self.measure[1:]


def summaries(
    results: Sequence[Result], study: Path, *, against: str | None = None, resamples: int = RESAMPLES
) -> list[Summary]:
    """By each metric those that were judged by it, against their first if `against` was not; see `left_out`.

    Raises:
        StudyError: no label is `against`, no metric has a task in common, or see `summarise`.
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
    """A line for each metric of which `summaries` has none: those that were judged by it have no task in common."""
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
    """Results of one label are the seeds of one arm; the first label, or `against`, is what the others must beat.

    Raises:
        StudyError: no label is `against`, the results share no task, or what was kept does not fit the results.
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
    """The least difference of the means that Welch's t-test calls one, Satterthwaite's the degrees of freedom (1947).

    Beside an encoder as it is that is the test of one sample. None where one of the two has a single seed; 0 where the
    seeds of neither differ.
    """
    if mine.error is None or theirs.error is None:
        return None
    variance = mine.error**2 + theirs.error**2
    if variance == 0:
        return 0.0
    parts = [(each.error**2 / variance, len(each.values) - 1) for each in (mine, theirs) if each.error]
    freedom = 1 / sum(share**2 / seeds for share, seeds in parts)
    return float(stdtrit(freedom, (1 + level) / 2)) * math.sqrt(variance)
