"""Replay of the step at which a run diverged."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from training import checkpoint
from training.assembly import initial, loaded, step_of, tokeniser_of
from training.config import RunConfig
from training.machine.devices import Devices
from training.machine.hardware import autocast_dtype
from training.teacher import plan


def replay(config: RunConfig, file: Path) -> tuple[int, dict[str, float], list[str]]:
    """Repeat a diverged step, and return its number, its terms, and the sentences with a non-finite value.

    The replay uses one process. If the run had several, dropout differs. If it had one, the result is the same, except
    that a teacher's vectors may differ in the last digits.

    Raises:
        CheckpointError: the file is not of this run.
        SourceError: the teacher that the run trained no longer exists.
    """
    devices = Devices(config.device)
    autocast = autocast_dtype(config.precision, devices.device)
    state = initial(config, devices, autocast)
    teacher = loaded(config.teacher or plan(config).out, devices) if state.objective.needs.teacher else None
    step = step_of(config, state, devices, teacher, autocast)
    sentences = checkpoint.load_moment(state, file, devices)
    batch = tokeniser_of(config, state.encoder, teacher, devices)(sentences, state.step)
    state.encoder.train()
    views: list[Tensor] = []
    values = step.gradients(batch, seen=views.append)
    values["gradient_norm"] = step.gradient_norm()
    return (
        state.step + 1,
        {name: value.item() for name, value in values.items()},
        [sentence for sentence, bad in zip(sentences, _odd(views[0], values["loss"]), strict=True) if bad],
    )


def _odd(views: Tensor, loss: Tensor) -> list[bool]:
    """Return for each sentence whether a view is not finite. If the loss is finite, also test the views' gradients."""
    assert views.grad is not None
    looked_at = torch.stack([views.detach(), views.grad if torch.isfinite(loss) else views.detach()])
    odd: list[bool] = (~torch.isfinite(looked_at)).any(dim=-1).any(dim=0).any(dim=0).tolist()
    return odd
