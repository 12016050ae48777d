"""The default teacher of an objective that needs a frozen encoder: an encoder trained by SimCSE and stored."""

from __future__ import annotations

import json
from pathlib import Path

from models.bundle import bundle
from models.bundle.bundle import BundleError
from training.config import ConfigError, RunConfig, from_preset
from training.objectives import OBJECTIVES

SHARED = (
    *("adapter_rank", "pooling", "dropout", "corpus", "text_column", "eval_data", "dev_data", "dev_tasks"),
    *("seed", "max_steps", "max_length", "eval_every", "chunk_size", "precision", "compile", "device"),
)
"""Fields that the teacher's run takes from the run that needs the teacher. The rest is SimCSE's preset."""


def plan(config: RunConfig) -> RunConfig:
    """Return the configuration of the teacher's run, with folders beside those of `config`.

    If the run's preset names a backbone for the teacher, the teacher starts from that backbone: DCLR's presets for
    large models name a base model of the same family. Otherwise the teacher starts from the run's own backbone, with
    SimCSE's preset of the same name.

    Raises:
        ConfigError: an encoder trained by SimCSE can't be the teacher.
    """
    recipe, name = OBJECTIVES[config.objective], config.preset.partition("+")[0]
    if recipe.imitates:
        raise ConfigError(f"teacher: {config.objective} learns from one: name it with --teacher")
    preset = recipe.presets.get(name)
    if preset is not None and preset.teacher_backbone is not None:
        simcse = from_preset("simcse", backbone=preset.teacher_backbone)
    else:
        known = name if name in OBJECTIVES["simcse"].presets else None
        simcse = from_preset("simcse", backbone=config.backbone, preset=known)
    shared = {name: getattr(config, name) for name in SHARED}
    if config.positives is not None:
        shared["augmentation"] = config.augmentation
    return simcse.override({**shared, "out": f"{config.out}-teacher", "run": f"{config.run}-teacher"})


def is_kept(planned: RunConfig, corpus: str) -> bool:
    """Return whether the bundle of the planned run exists. `corpus` is the digest of the run's corpus."""
    folder = Path(planned.out)
    if not (folder / bundle.MANIFEST).exists():
        return False
    try:
        run = bundle.load(folder).manifest.run or {}
    except BundleError:
        return False
    same_run = run.get("config") == json.loads(planned.to_json())
    return bool(same_run and run["corpus"]["digest"] == corpus)
