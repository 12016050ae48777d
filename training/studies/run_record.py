"""Record of finished runs: a file with one line per run that several studies, processes and machines share.

A study does not repeat a run that is in its record. A line has no per-example scores, so it is small enough for git.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.bundle.disk import make_folder, naming
from training.studies.results import Result, parse_lines, place_of
from training.studies.trial import StudyError, Trial

DIGITS = 7
"""Significant digits of the numbers in a line."""
KEPT = (
    *("untrained", "scores", "alignment", "uniformity", "effective_rank", "nearest_cosines"),
    *("best_step", "curve", "seconds", "corpus"),
)
"""Fields of a run's result that its line repeats.

The configuration is left out, because it has the paths of a machine. The ids cover the settings.
"""
ENVIRONMENT = ("threads", "cuda", "git_commit")
"""Fields of the environment that a line repeats, besides the version of torch."""

Line = Mapping[str, Any]
"""Fields of a run, as in a line of the record."""


@dataclass(frozen=True)
class RunRecord:
    """A file of finished runs. A missing file is an empty record."""

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
        """Return the recorded runs among `trials`, by the id of the trial.

        A trial without corpus and evaluation data is found by its settings.

        Raises:
            StudyError: see `lines`, or the settings of such a trial have runs on several corpora or evaluation data.
        """
        known: dict[str, dict[str, Line]] = {}
        for line in self.lines():
            for digest in (line["id"], line["settings"]):
                known.setdefault(digest, {})[line["id"]] = line
        found = {}
        for trial in trials:
            runs = known.get(trial.id if trial.has_data else trial.settings, {})
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
    """Parse a line, and check that it is the result of a run with its settings.

    Raises:
        ValueError: it is not.
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
    """Return a JSON value with its numbers rounded to `DIGITS` significant digits."""
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {name: _shortened(each) for name, each in value.items()}
        case list():
            return [_shortened(each) for each in value]
    return value
