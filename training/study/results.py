"""What the runs of a study came to: a file for each run, and all of them as lines of one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from models.disk import write_whole
from training.objectives.base import REMOVED_SHARE
from training.study.judgement import check_kept
from training.study.trial import StudyError, Trial, label_of

RUNS, TRIAL, RESULT, LOG = "runs", "trial.json", "result.json", "log.txt"
RESULTS = "results.jsonl"

FIELDS = ("scores", "alignment", "uniformity", "curve", "seconds", "best_step")
"""What a line must have besides `id`, `arm` and `axes`."""
GEOMETRY = ("alignment", "uniformity", "effective_rank")
"""None, or not in the line, where STS-B's dev part was not read; lines of before have no effective rank."""


@dataclass(frozen=True)
class Result:
    """A line of the results: a run of the study and what it came to."""

    id: str
    arm: str
    axes: Mapping[str, Any]
    scores: Mapping[str, float]
    """By task, as `training.study.judgement.Judgement` has them."""
    alignment: float | None
    uniformity: float | None
    curve: Sequence[Mapping[str, Any]]
    """The evaluations while it trained: `step` and whatever figures there were."""
    seconds: Mapping[str, float]
    best_step: int
    """Whose weights were judged; 0 where no step was better than the encoder it began with, and without training."""
    effective_rank: float | None = None
    """It, alignment and uniformity: see `GEOMETRY`."""
    untrained: bool = False
    """Whether it is the encoder as it was."""
    nearest_cosines: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By size of the batch, where they were asked for: see `training.study.judgement.Judgement.nearest`."""

    @property
    def unimproved(self) -> bool:
        """Whether it was trained in vain."""
        return bool(self.curve) and self.best_step == 0

    @property
    def removed_share(self) -> float | None:
        """Of the in-batch negatives, while it trained: the mean over its evaluations; None where none were weighed."""
        shares = [point[REMOVED_SHARE] for point in self.curve if point.get(REMOVED_SHARE) is not None]
        return fmean(shares) if shares else None

    @property
    def label(self) -> str:
        """Results of one label differ by their seed alone."""
        return label_of(self.arm, self.axes)

    @classmethod
    def of(cls, line: str) -> Self:
        """What a line says; a line may say more.

        Raises:
            ValueError: it is not that.
        """
        return cls.checked(json.loads(line))

    @classmethod
    def checked(cls, values: Any) -> Self:
        """What a line's values say.

        Raises:
            ValueError: they are not those of a line.
        """
        if not isinstance(values, dict):
            raise ValueError("not an object")
        if missing := [name for name in ("id", "arm", "axes", *FIELDS) if name not in values]:
            raise ValueError(f"{missing[0]}: missing")
        kinds = {"id": str, "arm": str, "axes": dict, "scores": dict, "curve": list, "seconds": dict, "best_step": int}
        for name, kind in {**kinds, "untrained": bool}.items():
            if not isinstance(values.get(name, kind()), kind):
                raise ValueError(f"{name}: {values[name]!r} is no {kind.__name__}")
        shape = {name: values[name] for name in GEOMETRY if values.get(name) is not None}
        for name, value in {**shape, **values["scores"]}.items():
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise ValueError(f"{name}: {value!r} is no number")
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})


def folder_of(trial: Trial, study: Path) -> Path:
    """The folder of a run."""
    return study / RUNS / trial.id


def measured(folder: Path) -> dict[str, Any] | None:
    """What the run in a folder came to; None if that is not known yet.

    Raises:
        StudyError: the result is damaged, or what it keeps of the tasks that it has scores of.
    """
    file = folder / RESULT
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("not an object")
        Result.checked({"id": "", "arm": "", "axes": {}, **values})
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StudyError(f"{file}: {error}") from error
    check_kept(folder, values["scores"])
    return values


def undamaged(folder: Path) -> dict[str, Any] | None:
    """The same, but a damaged result is none: whoever carries out the run says so and does it again."""
    try:
        return measured(folder)
    except StudyError:
        return None


def finished(folder: Path) -> bool:
    """Whether the run in a folder has a result, which is then never computed again."""
    return undamaged(folder) is not None


def collect(trials: Sequence[Trial], study: Path) -> int:
    """Writes the results of all finished runs, in the order of the study; gives their number."""
    lines = []
    for trial in trials:
        values = undamaged(folder_of(trial, study))
        if values is not None:
            place = {"id": trial.id, "arm": trial.arm, "axes": dict(trial.axes)}
            lines.append(json.dumps({**place, **values}))
    write_whole(study / RESULTS, "".join(f"{line}\n" for line in lines))
    return len(lines)


def read(study: Path) -> list[Result]:
    """The results in a study's folder.

    Raises:
        StudyError: there are none, or a line is broken.
    """
    return of_file(study / RESULTS)


def of_file(file: Path) -> list[Result]:
    """The results in a file, a line each.

    Raises:
        StudyError: there are none, or a line is broken.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise StudyError(f"{file}: {error.strerror}; `study run` writes it") from error
    except ValueError as error:
        raise StudyError(f"{file}: {error}") from error
    results = []
    for number, line in enumerate(lines, start=1):
        try:
            results.append(Result.of(line))
        except ValueError as error:
            raise StudyError(f"{file}:{number}: {error}") from error
    if not results:
        raise StudyError(f"{file}: no run is finished")
    return results
