"""Plan of a study, which its folder stores: its description, its runs in order, and their states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.bundle.disk import write_whole
from training.checkpoints import record
from training.machine.interrupt import LOCK
from training.studies.description import Study, file_of
from training.studies.results import LOG, is_finished, run_folder
from training.studies.schedule import is_locked
from training.studies.trial import StudyError, Trial
from training.studies.work import RECORD, load_data

PLAN = "study.json"
FOLDER = Path("runs/studies")
"""Default folder of studies."""


@dataclass(frozen=True)
class Plan:
    """The plan of a study, as stored in the study's folder."""

    name: str
    about: str
    trials: Sequence[Trial]

    @classmethod
    def of(cls, study: Study) -> Plan:
        """Return the plan of a study, after checking it.

        Raises:
            StudyError: see `Study.trials`.
        """
        return cls(study.name, study.about, study.trials())

    def check_files(self) -> None:
        """Load all evaluation data, so that an error is raised before the first run.

        Raises:
            StudyError, DataError: see `training.studies.work.load_data`.
        """
        judged = {(each.config.eval_data, each.sts, each.transfer, each.retrieval): each for each in self.trials}
        for trial in judged.values():
            load_data(trial)

    def save(self, folder: Path) -> None:
        trials = [json.loads(trial.to_json()) for trial in self.trials]
        content = {"name": self.name, "about": self.about, "trials": trials}
        write_whole(folder / PLAN, json.dumps(content) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """Read the plan in a study's folder.

        Raises:
            StudyError: the folder has no plan, or the plan is damaged.
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


def study_folder(source: Path, out: Path | None) -> Path:
    """Return a study's folder, given the folder itself or the study's file.

    Raises:
        StudyError: the file is not a study, or `source` is a folder and `out` is a different folder.
    """
    if not source.is_dir():
        study = Study.read(file_of(source))
        return out or FOLDER / study.name
    if out is not None:
        raise StudyError(f"--out: {source} is already the folder of a study; leave out --out")
    return source


def plan_of(source: Path, folder: Path) -> Plan:
    """Return the plan that a study's folder stores or, without one, the plan of the study's file.

    The runs of a file have no corpus and evaluation data, unless the file names them.

    Raises:
        StudyError: see `Plan.load` and `Plan.of`.
    """
    if source.is_dir() or (folder / PLAN).exists():
        return Plan.load(folder)
    return Plan.of(Study.read(file_of(source)))


def state(trial: Trial, study: Path, *, recorded: bool = False) -> str:
    """Return the state of a run in words.

    Args:
        recorded: whether the run is in the record.
    """
    folder = run_folder(trial, study)
    if recorded or is_finished(folder):
        return "finished"
    if not (folder / LOCK).exists():
        return "waiting"
    if is_locked(folder):
        return "at work"
    metrics = folder / RECORD / record.METRICS
    steps = metrics.read_text(encoding="utf-8").count('"kind": "train"') if metrics.exists() else 0
    return f"stopped after step {steps}, its log is {folder / LOG}"
