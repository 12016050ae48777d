"""One run of a study: training and evaluation. The encoder is not exported."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, TextIO

from models.bundle.disk import write_whole
from models.encoder.encoder import Encoder
from training import record, run
from training.config import RunConfig
from training.machine.devices import Devices
from training.machine.environment import environment
from training.publish import Outcome, counts
from training.study.judgement import judge
from training.study.material import material
from training.study.occupied import occupying
from training.study.results import RESULT, TRIAL, finished
from training.study.shares import share
from training.study.teachers import drop_checkpoints, with_teacher
from training.study.trial import StudyError, Trial

RECORD, SHARES, TEACHERS = "record", "shares", "teachers"


def carry_out(folder: Path, stream: TextIO) -> None:
    """Carry out the run in `folder/trial.json`, resume it if it was interrupted, and write its result.

    Raises:
        StudyError: there is no such description.
        LockError: another process works on this run.
        ValueError, DivergedError, InterruptedRun: see `training.run.fit`.
        StudyError, DataError: see `training.study.material.material`; nothing was trained.
        EvaluationError: see `training.study.judgement.judge`.
    """
    trial = _described(folder / TRIAL)
    with occupying(folder):
        if finished(folder):
            drop_checkpoints(folder / RECORD)  # A process killed between the last two steps leaves checkpoints.
            return
        given = material(trial)
        if trial.untrained:
            trained: dict[str, Any] = {"best_step": 0, "corpus": None, "curve": []}
            encoder, steps = Encoder.load(trial.config.backbone, pooling=trial.config.pooling), 0.0
        else:
            config = _placed(trial, folder, stream)
            outcome = run.fit(config, stream, resume=record.begun(folder / RECORD))
            trained, encoder = _trained(outcome, config), outcome.encoder
            steps = _seconds_of_steps(folder / RECORD / record.METRICS, outcome.census.sentences, config.batch_size)
        began = time.perf_counter()
        judgement = judge(encoder.to(Devices(trial.config.device).device), given, stream)
        judgement.keep(folder)
        result = {
            "untrained": trial.untrained,
            "fraction": trial.fraction,
            "scores": judgement.scores,
            "alignment": judgement.alignment,
            "uniformity": judgement.uniformity,
            "effective_rank": judgement.effective_rank,
            **({"nearest_cosines": judgement.nearest} if judgement.nearest else {}),
            **trained,
            "seconds": {"steps": steps, "judging": time.perf_counter() - began},
            "config": trial.config.values(),
            "environment": environment(),
        }
        write_whole(folder / RESULT, json.dumps(result) + "\n")
        drop_checkpoints(folder / RECORD)


def _described(file: Path) -> Trial:
    try:
        return Trial.from_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"{file}: {error.strerror}") from error


def _placed(trial: Trial, folder: Path, stream: TextIO) -> RunConfig:
    """Set the run's folders, its share of the corpus and its teacher.

    Runs of a study use the same shares and teachers.
    """
    study, config = folder.parent.parent, trial.config
    if not trial.sts:
        config = config.override({"eval_data": None})
    if trial.fraction < 1 and config.positives is not None:
        raise StudyError(f"fraction: shares are of sentences, and augmentation={config.augmentation} takes passages")
    if trial.fraction < 1:
        part = share(config.corpus, trial.fraction, study / SHARES, column=config.text_column)
        config = config.override({"corpus": (part,), "text_column": None})
    config = with_teacher(config, study / TEACHERS, stream)
    return config.override({"out": str(folder / "bundle"), "run": str(folder / RECORD)})


def _trained(outcome: Outcome, config: RunConfig) -> dict[str, Any]:
    return {
        "best_step": outcome.best.step,
        "corpus": counts(outcome.census),
        "curve": record.evaluations(Path(config.run)),
    }


def _seconds_of_steps(metrics: Path, sentences: int, batch_size: int) -> float:
    """Compute the total seconds of all steps from the recorded sentences per second. Resumed runs count as a whole."""
    whole, rest = divmod(sentences, batch_size)
    epoch = [batch_size] * whole + [rest] * bool(rest)
    lines = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
    steps = (line for line in lines if line["kind"] == "train")
    return float(sum(epoch[(line["step"] - 1) % len(epoch)] / line["sentences_per_s"] for line in steps))
