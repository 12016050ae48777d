"""The step at which a run diverged, taken once more."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from training import checkpoint
from training.assembly import initial, loaded, step_of
from training.batches import tokeniser
from training.config import RunConfig
from training.devices import Devices
from training.hardware import autocast_dtype
from training.teacher import plan


def replay(config: RunConfig, file: Path) -> tuple[int, dict[str, float], list[str]]:
    """A step that diverged, taken again: its number, its terms, and the sentences of which a view is not finite.

    Raises:
        CheckpointError: the file is not of this run.
        SourceError: the teacher that the run trained is gone.
    """
    devices = Devices(config.device)
    autocast = autocast_dtype(config.precision, devices.device)
    state = initial(config, devices, autocast)
    teacher = loaded(config.teacher or plan(config).out, devices) if state.objective.needs.teacher else None
    step = step_of(config, state, devices, teacher, autocast)
    sentences = checkpoint.load_moment(state, file, devices)
    batch = tokeniser(state.encoder, teacher, max_length=config.max_length, own=devices.rows)(sentences)
    state.encoder.train()
    views: list[Tensor] = []
    values = step.gradients(batch, seen=views.append)
    odd = ~torch.isfinite(views[0]).all(dim=-1).all(dim=0)
    return (
        state.step + 1,
        {name: value.item() for name, value in values.items()},
        [sentence for sentence, bad in zip(sentences, odd.tolist(), strict=True) if bad],
    )
