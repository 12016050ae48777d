"""Teachers of a study. Each is trained once and shared by all runs that need the same one."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from models.encoder.encoder import Encoder
from training import record, run
from training.config import ConfigError, RunConfig
from training.lock import locked
from training.objectives import OBJECTIVES
from training.publish import publish
from training.study.contents import Contents
from training.teacher import is_kept, plan


def with_teacher(config: RunConfig, folder: Path, stream: TextIO) -> RunConfig:
    """Return the run with its teacher. Train the teacher in `folder` unless one is given or exists.

    A run that needs no teacher gets none.

    Raises:
        ConfigError: the encoder is too narrow for the objective.
        ValueError, DivergedError, InterruptedRun: see `training.run.fit`.
    """
    if not _needs_teacher(config):
        return replace(config, teacher=None)
    if config.teacher is not None:
        return config
    planned = plan(config).override({"out": "", "run": ""})
    # The key covers paths, as the teacher's bundle does, and contents.
    known = f"{planned.to_json()}{Contents().of(planned)}"
    place = folder.resolve() / hashlib.blake2b(known.encode("utf-8"), digest_size=6).hexdigest()
    planned = planned.override({"out": str(place / "bundle"), "run": str(place / "record")})
    with locked(place, wait=True):
        corpus = run.corpus_of(planned, 0)
        if not is_kept(planned, corpus.census.digest):
            print(f"teacher: SimCSE trains one first, for all runs that share it, in {place}", file=stream)
            outcome = run.fit(planned, stream, resume=record.begun(Path(planned.run)))
            publish(planned, outcome, {})
            drop_checkpoints(Path(planned.run))
    return replace(config, teacher=planned.out)


def drop_checkpoints(folder: Path) -> None:
    """Delete the checkpoints of a finished run.

    Checkpoints are several times as large as the encoder, and a study has many runs.
    """
    for file in folder.glob("*.safetensors"):
        file.unlink()


def _needs_teacher(config: RunConfig) -> bool:
    width = Encoder.load(config.backbone, pooling=config.pooling).dim
    try:
        return OBJECTIVES[config.objective].build(config.params, width).needs.teacher
    except ValueError as error:
        raise ConfigError(str(error)) from error
