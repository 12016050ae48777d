"""The frozen encoder that an objective needs, where none is named: SimCSE's, of the same backbone, kept."""

from __future__ import annotations

import json
from pathlib import Path

from models import bundle
from models.bundle import BundleError
from training.config import ConfigError, RunConfig, from_preset
from training.objectives import OBJECTIVES

SHARED = (
    *("backbone", "adapter_rank", "pooling", "dropout", "corpus", "text_column", "eval_data", "dev_data"),
    *("seed", "max_steps", "max_length", "eval_every", "chunk_size", "precision", "compile", "device"),
)
"""What the teacher's run has in common with the run that asks for it; the rest is SimCSE's preset."""


def plan(config: RunConfig) -> RunConfig:
    """The run that makes the teacher, its folders beside those of `config`.

    Raises:
        ConfigError: no encoder of the same backbone would do.
    """
    if OBJECTIVES[config.objective].imitates:
        raise ConfigError(f"teacher: {config.objective} learns from one: name it with --teacher")
    simcse = from_preset("simcse", backbone=config.backbone)
    shared = {name: getattr(config, name) for name in SHARED}
    return simcse.override({**shared, "out": f"{config.out}-teacher", "run": f"{config.run}-teacher"})


def is_kept(planned: RunConfig, corpus: str) -> bool:
    """Whether the bundle of the planned run, over the corpus with that digest, is there already."""
    folder = Path(planned.out)
    if not (folder / bundle.MANIFEST).exists():
        return False
    try:
        run = bundle.load(folder).manifest.run or {}
    except BundleError:
        return False
    same_run = run.get("config") == json.loads(planned.to_json())
    return bool(same_run and run["corpus"]["digest"] == corpus)
