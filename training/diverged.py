"""A step whose loss is not a number, kept so that it can be taken again and looked into."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from torch.amp.grad_scaler import GradScaler

from models.errors import Failed
from training import checkpoint
from training.checkpoint import CheckpointError, State
from training.machine.devices import Devices
from training.unread import Taken


class DivergedError(Failed):
    """A loss or gradient is not a number; the message names step and terms."""


def only_out_of_range(values: Mapping[str, float], scaler: GradScaler) -> bool:
    """Whether fp16 could not hold a gradient whose loss is a number: its update is skipped, and the scale halved.

    Not once the scale is below 1, which the range of fp16 no longer explains.
    """
    return scaler.is_enabled() and math.isfinite(values["loss"]) and scaler.get_scale() >= 1


def check_weights(state: State) -> None:
    """Before they are judged, and kept.

    Raises:
        DivergedError: one is NaN or infinite: the update of finite gradients can make it so.
    """
    if not all(bool(weights.isfinite().all()) for weights in state.encoder.parameters()):
        raise DivergedError(
            f"step {state.step}: its update leaves weights that are no numbers; begin again with a lower learning_rate"
        )


def listed(values: Mapping[str, float]) -> str:
    """The terms in one line."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def last(folder: Path) -> Path:
    """The file of the step at which the run in `folder` diverged last.

    Raises:
        CheckpointError: it never did.
    """
    files = _kept(folder)
    if not files:
        raise CheckpointError(f"{folder}: no step of this run diverged")
    return files[-1]


def save(state: State, taken: Taken, folder: Path, devices: Devices) -> Path:
    """Writes weights, random states and sentences as they were before the step. Nothing has changed a weight since.

    Files of earlier divergences, after which the run was resumed, are removed: their steps may be later ones. With
    several processes the random state is the first one's alone.
    """
    file = folder / f"diverged-{taken.step:08d}.safetensors"
    if devices.first:
        checkpoint.save_moment(state, taken.before, file, step=taken.step - 1, sentences=taken.batch.sentences)
        for other in _kept(folder):
            if other != file:
                other.unlink()
    devices.wait()
    return file


def _kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("diverged-*.safetensors"))
