"""The plan of a study, kept in its folder: what it is about and its runs in order, with how far each of them is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.disk import write_whole
from training import record
from training.lock import LOCK
from training.study.description import Study, file_of
from training.study.material import material
from training.study.occupied import occupied
from training.study.results import LOG, finished, folder_of
from training.study.trial import StudyError, Trial
from training.study.work import RECORD

PLAN = "study.json"
FOLDER = Path("runs/studies")
"""Where studies lie unless another place is named."""


@dataclass(frozen=True)
class Plan:
    """What a study's folder is for."""

    name: str
    about: str
    trials: Sequence[Trial]

    @classmethod
    def of(cls, study: Study) -> Plan:
        """Of a study file, checked.

        Raises:
            StudyError: see `Study.trials`.
        """
        return cls(study.name, study.about, study.trials())

    def check_files(self) -> None:
        """What would stop every run stops the study before it begins.

        Raises:
            StudyError, DataError: see `training.study.material.material`.
        """
        judged = {(each.config.eval_data, each.sts, each.transfer, each.retrieval): each for each in self.trials}
        for trial in judged.values():
            material(trial)

    def keep(self, folder: Path) -> None:
        """Writes it."""
        trials = [json.loads(trial.to_json()) for trial in self.trials]
        content = {"name": self.name, "about": self.about, "trials": trials}
        write_whole(folder / PLAN, json.dumps(content) + "\n")

    @classmethod
    def kept(cls, folder: Path) -> Plan:
        """The one in a study's folder.

        Raises:
            StudyError: there is none, or it is damaged.
        """
        file = folder / PLAN
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            trials = [Trial.from_json(json.dumps(each)) for each in values["trials"]]
            return cls(values["name"], values["about"], trials)
        except OSError as error:
            raise StudyError(f"{file}: {error.strerror}; `study run` writes it") from error
        except (ValueError, TypeError, KeyError) as error:
            raise StudyError(f"{file}: {error}") from error


def folder_named(source: Path, out: Path | None) -> Path:
    """The folder of a study that is named by it or by its file.

    Raises:
        StudyError: the file is no study; or a folder is named, and another one beside it.
    """
    if not source.is_dir():
        study = Study.read(file_of(source))
        return out or FOLDER / study.name
    if out is not None:
        raise StudyError(f"--out: {source} is the folder of a study already")
    return source


def state(trial: Trial, study: Path) -> str:
    """How far a run is, in words."""
    folder = folder_of(trial, study)
    if finished(folder):
        return "finished"
    if not (folder / LOCK).exists():
        return "waiting"
    if occupied(folder):
        return "at work"
    metrics = folder / RECORD / record.METRICS
    steps = metrics.read_text(encoding="utf-8").count('"kind": "train"') if metrics.exists() else 0
    return f"stopped after step {steps}, its log is {folder / LOG}"
