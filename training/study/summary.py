"""What the results of a study say: means over seeds, and whether the differences between arms are more than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from training.evaluation.bootstrap import Comparison, Interval, resample
from training.evaluation.pairs import STS_TASKS
from training.study.judgement import DEV, kept
from training.study.results import COSINES, RUNS, Result
from training.study.trial import StudyError

RESAMPLES = 1000
DECIMALS = 2
"""Of what is shown. The same weights give other cosines in the sixth, by the order of their sums."""

LEVEL = 0.95
"""Of the intervals, whether of sentence pairs or of seeds."""

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Spread:
    """Of the seeds of an arm."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Their standard deviation, with n - 1; None of one seed."""
        return stdev(self.values) if len(self.values) > 1 else None

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
    """None where a result lacks STS-B's dev part."""
    interval: Interval | None
    """Of the mean on other sentence pairs; None where the cosines were not kept."""
    gain: Comparison | None
    """Over the arm that all are compared with; None for itself, and without cosines."""
    noise: float | None
    """How far from 0 the seeds alone may put the gain, see `welch`; None where one of the two has a single seed."""

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
        """Whether the pairs show no difference, as far as the decimals go that are shown."""
        return self.gain is not None and round(self.gain.low, DECIMALS) <= 0 <= round(self.gain.high, DECIMALS)


@dataclass(frozen=True)
class Summary:
    """A study's results, arm by arm."""

    rows: tuple[Row, ...]
    against: str
    """The label that the others are compared with."""
    tasks: tuple[str, ...]
    """Of the mean: those that every result has."""

    @property
    def measure(self) -> str:
        """What the mean is of."""
        return f"mean of {len(self.tasks)} tasks" if len(self.tasks) > 1 else self.tasks[0]

    @property
    def title(self) -> str:
        """The same at the head of a line."""
        return self.measure[0].upper() + self.measure[1:]


def summarise(
    results: Sequence[Result], study: Path, *, against: str | None = None, resamples: int = RESAMPLES
) -> Summary:
    """Results of one label are the seeds of one arm; the first label, or `against`, is what the others must beat.

    Raises:
        StudyError: no label is `against`, the results share no task, or cosines do not fit the results.
        EvaluationError: see `training.evaluation.bootstrap.resample`.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.label, []).append(result)
    against = next(iter(groups)) if against is None else against
    if against not in groups:
        raise StudyError(f"--against {against}: none of {'; '.join(groups)}")
    tasks = _tasks(results)
    means = {label: Spread(tuple(_mean(each, tasks) for each in of)) for label, of in groups.items()}
    cosines, golds = _kept(results, study, tasks)
    drawn = {
        label: resample([cosines[each.id] for each in of], golds, resamples=resamples)
        for label, of in groups.items()
        if all(each.id in cosines for each in of)
    }
    rows = []
    for label, of in groups.items():
        here, there = drawn.get(label), drawn.get(against)
        rows.append(
            Row(
                label=label,
                results=tuple(of),
                mean=means[label],
                dev=Spread(tuple(each.scores[DEV] for each in of)) if all(DEV in each.scores for each in of) else None,
                interval=here.interval(LEVEL) if here else None,
                gain=here.against(there, LEVEL) if here and there and label != against else None,
                noise=welch(means[label], means[against]),
            )
        )
    return Summary(tuple(rows), against, tasks)


def table(summary: Summary) -> str:
    """The summary as aligned lines, and what its columns mean."""
    head = ["", "seeds", summary.measure, "STS-B dev", "gain", "95 % interval", "P(better)", ""]
    lines = [head, *(cells(row) for row in summary.rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join([*text, "", explanation(summary)])


def cells(row: Row) -> list[str]:
    """What a table says of a row."""
    gain = row.gain
    compared = ["", "", ""]
    if gain:
        difference, low, high = map(_signed, (gain.difference, gain.low, gain.high))
        compared = [difference, f"[{low}, {high}]", f"{gain.better:.3f}"]
    dev = "" if row.dev is None else str(row.dev)
    return [row.label, str(len(row.results)), str(row.mean), dev, *compared, row.verdict]


def explanation(summary: Summary) -> str:
    """What the numbers of a table are, and where they show nothing."""
    undecided = [row.label for row in summary.rows if row.undecided]
    compared = sum(row.gain is not None for row in summary.rows)
    said = (
        f" Comparisons made: {compared}, each at {LEVEL:.0%} by itself, so of twenty arms that are no better or worse"
    )
    said = f"{said} than {summary.against} one is expected to seem so." if compared else ""
    said += f" The interval contains 0, so no difference is shown, for: {'; '.join(undecided)}." if undecided else ""
    vain = [row.label for row in summary.rows if any(result.unimproved for result in row.results)]
    if vain:
        said += f" In some runs no step was better than the encoder they began with, by STS-B dev: {'; '.join(vain)}."
    return (
        f"Spearman × 100, mean ± standard deviation over seeds; tasks of the mean: {', '.join(summary.tasks)}. Gain, "
        f"interval and P(better) are over {summary.against}: a paired bootstrap of the sentence pairs, with the "
        "encoders as they are. Seeds are another source of chance: a gain is within their noise if Welch's t-test "
        f"would not tell the arms' means apart.{said}"
    )


def _tasks(results: Sequence[Result]) -> tuple[str, ...]:
    """The test tasks of all results; without any, STS-B's dev part stands in."""
    shared = set.intersection(*(set(result.scores) for result in results))
    tasks = tuple(task for task in STS_TASKS if task in shared) or tuple({DEV} & shared)
    if not tasks:
        raise StudyError("the results share no task, so there is nothing to compare")
    return tasks


def _signed(value: float) -> str:
    return f"{round(value, DECIMALS) + 0.0:+.2f}"  # no minus before a 0


def _mean(result: Result, tasks: Sequence[str]) -> float:
    return fmean(round(result.scores[task], 2) for task in tasks)


def _kept(results: Sequence[Result], study: Path, tasks: Sequence[str]) -> tuple[dict[str, Arrays], Arrays]:
    """The cosines by id and task, and people's scores by task: those of the first, which all must have been given."""
    cosines: dict[str, Arrays] = {}
    golds: Arrays = {}
    for result in results:
        file = study / RUNS / result.id / COSINES
        if result.id in cosines or not file.exists():
            continue
        found, theirs = kept(file)
        if missing := [task for task in tasks if task not in found or task not in theirs]:
            raise StudyError(f"{file}: no cosines of {missing[0]}, which the results have")
        golds = golds or {task: theirs[task] for task in tasks}
        if changed := [task for task in tasks if not np.array_equal(theirs[task], golds[task])]:
            raise StudyError(f"{file}: people's scores of {changed[0]} are not those of the first run")
        cosines[result.id] = {task: found[task] for task in tasks}
    return cosines, golds


def welch(mine: Spread, theirs: Spread, level: float = LEVEL) -> float | None:
    """The least difference of the means that Welch's t-test calls one, Satterthwaite's the degrees of freedom (1947).

    None where one of the two has a single seed; 0 where the seeds of neither differ.
    """
    if mine.deviation is None or theirs.deviation is None:
        return None
    a, b = mine.deviation**2 / len(mine.values), theirs.deviation**2 / len(theirs.values)
    if a + b == 0:
        return 0.0
    share = a / (a + b)
    freedom = 1 / (share**2 / (len(mine.values) - 1) + (1 - share) ** 2 / (len(theirs.values) - 1))
    return float(student.ppf((1 + level) / 2, freedom)) * math.sqrt(a + b)
