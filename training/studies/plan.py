"""Plan of a study: its description and its runs in order. The plan is stored in the study's folder.

The module also finds the states of runs, and estimates the hours that runs take.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.bundle.disk import write_whole
from training.checkpoints import record
from training.machine.interrupt import LOCK
from training.objectives import OBJECTIVES
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

    def check_files(self) -> None:
        """Load the data of all evaluations, so that missing or broken data are found before the first run.

        If a run has `neighbours`, its evaluation also needs sentences of the corpus, which are loaded as well.

        Raises:
            StudyError, CorpusError, DataError: see `training.studies.work.load_data`.
        """
        judged = {}
        for each in self.trials:
            config = each.config
            sentences = (each.neighbours, config.corpus, config.text_column, config.positives)
            data = (config.eval_data, each.sts, each.transfer, each.retrieval)
            judged[data, sentences if each.neighbours else None] = each
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
    """Return the folder of a study. `source` is this folder, or the file or name of the study.

    If `source` is not a folder, the result is `out` or, by default, the study's name below `FOLDER`.

    Raises:
        StudyError: the file is not a study, or `source` is a folder and `out` is given, too.
    """
    if not source.is_dir():
        study = Study.read(file_of(source))
        return out or FOLDER / study.name
    if out is not None:
        raise StudyError(f"--out: {source} is already the folder of a study; leave out --out")
    return source


def plan_of(source: Path, folder: Path) -> Plan:
    """Return the plan in the study's folder. If `folder` has no plan, return the plan of the study's file `source`.

    A plan from the file lacks the options of `study run`, such as the corpus and the evaluation data.

    Raises:
        StudyError: `source` is neither a file nor the name of a study; or see `Plan.load`, `Study.read` and
            `Study.trials`.
    """
    if source.is_dir() or (folder / PLAN).exists():
        return Plan.load(folder)
    study = Study.read(file_of(source))
    return Plan(study.name, study.about, study.trials())


def state(trial: Trial, study: Path, *, recorded: bool = False) -> str:
    """Return the state of a run in words, such as "waiting" or "finished".

    Args:
        study: folder of the study.
        recorded: True if the run is in the record of finished runs.
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


# Estimated duration of a study. It follows from the number of encoded sentences and from measured speeds.

SENTENCES = 1_000_000
"""Number of sentences in the papers' corpus. Runs whose length is given in epochs are assumed to use this corpus."""
TRAINED = 3
"""Cost of a forward and a backward pass together, relative to a forward pass."""
DEV, TASKS = 3_000, 32_000
"""Numbers of distinct sentences that are encoded in an evaluation during training, and in the final STS tasks."""
CORE = 490.0
"""Speed of minilm's forward pass on one core of a Xeon, in sentences per second.

The speed is from benchmarks/results/studies/objectives.jsonl.
"""
DEVICE = 27_600.0
"""Speed of BERT-base's forward pass on an H100, in sentences per second.

The value is six times SimCSE's training speed in benchmarks/results/gpu/recorded_steps.json.
"""
LARGE = 3.0
"""Computation of a large model, relative to a base model."""


def cpu_hours(trials: Sequence[Trial]) -> float:
    """Estimate the hours of all runs together on one CPU core. Equal runs count once.

    The estimate assumes that every run starts from minilm.
    """
    return sum(map(_passes, _different(trials))) / CORE / 3600


def gpu_hours(trials: Sequence[Trial]) -> float:
    """Estimate the hours of all runs on one H100, one after the other. Equal runs count once.

    A backbone counts as a large model if its name contains "large". All other backbones count as BERT-base.
    """
    weighted = (_passes(each) * (LARGE if "large" in each.config.backbone else 1.0) for each in _different(trials))
    return sum(weighted) / DEVICE / 3600


def _different(trials: Sequence[Trial]) -> list[Trial]:
    return list({trial.id: trial for trial in trials}.values())


def _passes(trial: Trial) -> float:
    """Estimate the cost of a run as a number of forward passes of single sentences.

    The training of a teacher is included if the run needs a teacher and names none.
    """
    judged = float(TASKS + trial.neighbours)
    if trial.untrained:
        return judged
    config = trial.config
    steps = config.max_steps or math.ceil(config.epochs * SENTENCES * trial.fraction / config.batch_size)
    evaluations = (steps // config.eval_every + 1) * DEV
    # `needs` does not depend on the width of vectors, so any valid width serves here.
    needs = OBJECTIVES[config.objective].build(config.params, 2 * getattr(config.params, "groups", 1)).needs
    a_sentence = TRAINED * (needs.views + needs.clean) + needs.teacher
    teacher = steps * config.batch_size * TRAINED * 2 + evaluations if needs.teacher and not config.teacher else 0
    return steps * config.batch_size * a_sentence + evaluations + teacher + judged
