"""Divergence: a step whose loss is not finite is stored, so that it can be repeated and inspected."""

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
    """A loss, gradient or weight is not finite. The message names step and terms."""


def only_out_of_range(values: Mapping[str, float], scaler: GradScaler) -> bool:
    """Return whether a finite loss has a gradient beyond the range of fp16.

    The update is then skipped and the scale halved. A scale below 1 rules this explanation out.
    """
    return scaler.is_enabled() and math.isfinite(values["loss"]) and scaler.get_scale() >= 1


def check_weights(state: State) -> None:
    """Check that the encoder's weights are finite before they are evaluated and stored.

    Raises:
        DivergedError: a weight is NaN or infinite, which an update with finite gradients can cause.
    """
    if not all(bool(weights.isfinite().all()) for weights in state.encoder.parameters()):
        raise DivergedError(
            f"step {state.step}: its update leaves weights that are no numbers; begin again with a lower learning_rate"
        )


def listed(values: Mapping[str, float]) -> str:
    """Format the terms in one line."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def last(folder: Path) -> Path:
    """Return the file of the last step at which the run in `folder` diverged.

    Raises:
        CheckpointError: the run never diverged.
    """
    files = _kept(folder)
    if not files:
        raise CheckpointError(f"{folder}: no step of this run diverged")
    return files[-1]


def save(state: State, taken: Taken, folder: Path, devices: Devices) -> Path:
    """Write weights, random states and sentences from before the step.

    No weight has changed since.

    Files of earlier divergences are removed, because the resumed run may now diverge at an earlier step. With several
    processes, only the first one's random state is stored.
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
