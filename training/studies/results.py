"""Results of a study's runs: a file for each run, a file for the study with one line per run, and the record.

The record is a file with one line per finished run. Several studies, processes and machines can share a record. A study
does not repeat a run that is in its record.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Self, TypeVar

from models.bundle.disk import make_folder, naming, write_whole
from training.objectives.base import REMOVED_SHARE
from training.studies.scores import check_saved
from training.studies.trial import StudyError, Trial, label_of

T = TypeVar("T")

RUNS, TRIAL, RESULT, LOG = "runs", "trial.json", "result.json", "log.txt"
RESULTS = "results.jsonl"

FIELDS = ("scores", "alignment", "uniformity", "curve", "seconds", "best_step")
"""Fields that each line of the results must have, besides `id`, `arm` and `axes`."""
GEOMETRY = ("alignment", "uniformity", "effective_rank")
"""Fields that are None or absent if STS-B dev was not evaluated. Older lines lack the effective rank."""


@dataclass(frozen=True)
class Result:
    """The result of one run, as in a line of the study's file of results."""

    id: str
    arm: str
    axes: Mapping[str, Any]
    scores: Mapping[str, float]
    """Scores by task, as in `training.studies.scores.TrialScores.scores`."""
    alignment: float | None
    uniformity: float | None
    curve: Sequence[Mapping[str, Any]]
    """Evaluations during training. Each has `step` and the measured values."""
    seconds: Mapping[str, float]
    best_step: int
    """Step of the evaluated weights. It is 0 without training, or if no step improved the initial encoder."""
    effective_rank: float | None = None
    """Effective rank, which is None if STS-B dev was not evaluated."""
    untrained: bool = False
    """True if the encoder was evaluated without training."""
    nearest_cosines: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Mean cosines as in `training.studies.scores.TrialScores.nearest`, if requested. The keys are batch sizes."""

    @property
    def removed_share(self) -> float | None:
        """Mean share of removed in-batch negatives in training, or None if the objective removes none."""
        shares = [point[REMOVED_SHARE] for point in self.curve if point.get(REMOVED_SHARE) is not None]
        return fmean(shares) if shares else None

    @property
    def label(self) -> str:
        """Arm and values of its axes, as a text. Results with the same label differ only by seed."""
        return label_of(self.arm, self.axes)

    @classmethod
    def checked(cls, values: Any) -> Self:
        """Check the values of a line of results, and return them as a `Result`. Unknown fields are ignored.

        Raises:
            ValueError: a field is missing or of the wrong type.
        """
        if not isinstance(values, dict):
            raise ValueError("not an object")
        if missing := [name for name in ("id", "arm", "axes", *FIELDS) if name not in values]:
            raise ValueError(f"{missing[0]}: missing")
        kinds = {"id": str, "arm": str, "axes": dict, "scores": dict, "curve": list, "seconds": dict, "best_step": int}
        for name, kind in {**kinds, "untrained": bool}.items():
            if not isinstance(values.get(name, kind()), kind):
                raise ValueError(f"{name}: expected {kind.__name__}, got {values[name]!r}")
        shape = {name: values[name] for name in GEOMETRY if values.get(name) is not None}
        for name, value in {**shape, **values["scores"]}.items():
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise ValueError(f"{name}: {value!r} is not a number")
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})


def run_folder(trial: Trial, study: Path) -> Path:
    return study / RUNS / trial.id


def read_result(folder: Path) -> dict[str, Any] | None:
    """Read the result of the run in a folder, or return None if the run has no result yet.

    Raises:
        StudyError: the result is damaged, or the arrays of a task that has a score are missing or damaged.
    """
    file = folder / RESULT
    try:
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        Result.checked({"id": "", "arm": "", "axes": {}, **values} if isinstance(values, dict) else values)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StudyError(f"{file}: {error}") from error
    check_saved(folder, values["scores"])
    return values


def result_or_none(folder: Path) -> dict[str, Any] | None:
    """Read the result of the run in a folder, or return None if the result is missing or damaged.

    A run without a usable result is repeated.
    """
    try:
        return read_result(folder)
    except StudyError:
        return None


def is_finished(folder: Path) -> bool:
    """Return whether the run in a folder has a usable result. Finished runs are never repeated."""
    return result_or_none(folder) is not None


def collect_results(trials: Sequence[Trial], study: Path, recorded: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the results of all finished runs to the study's file of results, in the order of `trials`.

    `recorded` has results by run id. They are used for runs that have no result in the study's folder.
    """
    lines = [json.dumps(each) for each in finished(trials, study, recorded)]
    write_whole(study / RESULTS, "".join(f"{line}\n" for line in lines))


def finished(
    trials: Sequence[Trial], study: Path, recorded: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the fields of each finished run's result, in the order of `trials`.

    `recorded` has lines of a `RunRecord` by run id. If a run has no result in the study's folder, its line in
    `recorded` is used instead.
    """
    for trial in trials:
        values = result_or_none(run_folder(trial, study)) or recorded.get(trial.id)
        if values is not None:
            yield {**values, **place_of(trial)}


def place_of(trial: Trial) -> dict[str, Any]:
    """Return the fields that identify a run in a file of results: its id, its arm and the values of its axes.

    The run's own file `result.json` lacks these fields.
    """
    return {"id": trial.id, "arm": trial.arm, "axes": dict(trial.axes)}


def read_results(file: Path) -> list[Result]:
    """Read results from a file with one result per line.

    Raises:
        StudyError: the file can't be read or has no results, or a line is broken.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise StudyError(f"{file}: {error.strerror}; `study run` writes it") from error
    results = parse_lines(content, file, lambda line: Result.checked(json.loads(line)))
    if not results:
        raise StudyError(f"{file}: no run is finished")
    return results


def parse_lines(content: bytes, file: Path, parse: Callable[[bytes], T]) -> list[T]:
    """Parse each line of the `content` of a file.

    Raises:
        StudyError: `parse` raises a ValueError for a line. The message names the file and the line.
    """
    parsed = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            parsed.append(parse(line))
        except ValueError as error:
            raise StudyError(f"{file}:{number}: {error}") from error
    return parsed


# Record of runs. A line has no per-example scores, so it is small enough for git.

DIGITS = 7
"""Significant digits of the numbers in a line."""
KEPT = (
    *("untrained", "scores", "alignment", "uniformity", "effective_rank", "nearest_cosines"),
    *("best_step", "curve", "seconds", "corpus"),
)
"""Fields of a run's result that its line repeats.

The configuration is left out, because it has paths of one machine. The id of a run covers its settings.
"""
ENVIRONMENT = ("threads", "device", "cuda", "git_commit")
"""Fields of the environment that a line repeats, besides the version of torch."""

Line = Mapping[str, Any]
"""Fields of a run, as in a line of the record."""


@dataclass(frozen=True)
class RunRecord:
    """A file with one line per finished run. Several studies can share the file. A missing file is an empty record."""

    file: Path
    study: str = ""
    """Name of the study that adds runs."""

    def lines(self) -> list[Line]:
        """Return all runs, in the order of the file.

        Raises:
            StudyError: a line is broken, or the file can't be read.
        """
        try:
            with self.file.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)  # Another process may be in the middle of a line.
                return parse_lines(file.read(), self.file, _checked)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StudyError(f"{self.file}: {error.strerror}") from error

    def find(self, trials: Iterable[Trial]) -> dict[str, Line]:
        """Return the recorded lines of `trials`, as {id of the trial: line}. Trials without a line are left out.

        A trial with evaluation data is found by its id, which depends on the data. A trial whose evaluation data are
        unknown has another id than its recorded run. It is found by the hash `Trial.settings`, which depends neither on
        the corpus nor on the evaluation data.

        Raises:
            StudyError: a line is broken, or the file can't be read. Or the evaluation data of a trial are unknown, and
                several recorded runs have its settings, but different data.
        """
        known: dict[str, dict[str, Line]] = {}
        for line in self.lines():
            for digest in (line["id"], line["settings"]):
                known.setdefault(digest, {})[line["id"]] = line
        found = {}
        for trial in trials:
            runs = known.get(trial.id if trial.config.eval_data else trial.settings, {})
            if len(runs) > 1:
                raise StudyError(
                    f"{self.file}: runs {' and '.join(runs)} have the same settings, but other data: {trial.title}"
                )
            for line in runs.values():
                found[trial.id] = line
        return found

    def add(self, trial: Trial, values: Mapping[str, Any]) -> None:
        """Append the result of a run, unless the record has this run already.

        Concurrent writers wait for each other. The line is appended as a whole or not at all.

        Args:
            values: result of the run, as in its `result.json`.

        Raises:
            StudyError: a line of the record is broken.
            OSError: the file can't be written. The message names the file.
        """
        make_folder(self.file.parent)
        with naming(self.file), self.file.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            before = file.readall()
            if trial.id in {line["id"] for line in parse_lines(before, self.file, _checked)}:
                return
            start = "\n" if before and not before.endswith(b"\n") else ""
            added = f"{start}{json.dumps(_line(trial, values, self.study))}\n".encode()
            try:
                if file.write(added) < len(added):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(len(before))
                raise


def _checked(text: bytes) -> Line:
    """Parse a line of the record, and check its fields.

    Raises:
        ValueError: the line is not a result, or its field `settings`, which contains a hash, is missing or not text.
    """
    values: Line = json.loads(text)
    Result.checked(values)
    if not isinstance(values.get("settings"), str):
        raise ValueError("settings: missing, or not text")
    return values


def _line(trial: Trial, values: Mapping[str, Any], study: str) -> Line:
    environment = values.get("environment", {})
    versions = {"torch": environment.get("packages", {}).get("torch")}
    return {
        **place_of(trial),
        "study": study,
        "settings": trial.settings,
        **{name: _shortened(values[name]) for name in KEPT if name in values},
        "environment": versions | {name: environment.get(name) for name in ENVIRONMENT},
    }


def _shortened(value: Any) -> Any:
    """Return a JSON value with its floating-point numbers rounded to `DIGITS` significant digits."""
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {name: _shortened(each) for name, each in value.items()}
        case list():
            return [_shortened(each) for each in value]
    return value
