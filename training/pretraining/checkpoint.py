"""Checkpoints of pre-training, so that a killed run resumes exactly.

In addition to what `training.checkpoints.checkpoint` stores, the file has the position in the corpus. The number of
sentences per step varies, so the position does not follow from the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from models.errors import first_line
from training.checkpoints.checkpoint import CHECKPOINT, CheckpointError, check_origin
from training.machine.devices import Devices, RandomState
from training.machine.state_file import (
    optimiser_tensors,
    random_tensors,
    read_header,
    restore_optimiser,
    restore_random,
    save_state,
    with_prefix,
    without_prefix,
)
from training.pretraining.batches import START, Position
from training.pretraining.model import MaskedLM


@dataclass
class State:
    """Everything that changes during pre-training."""

    model: MaskedLM
    optimiser: torch.optim.Optimizer
    step: int = 0
    position: Position = START
    """Position of the next step in the corpus."""


def save(state: State, folder: Path, devices: Devices, *, corpus: str) -> None:
    """Write the checkpoint of `state` for a corpus with digest `corpus`."""
    facts = {"step": state.step, "position": state.position, "corpus": corpus, "processes": devices.count}
    # Tied weights are stored once.
    weights = {name: weight.detach() for name, weight in state.model.named_parameters()}
    random = random_tensors(devices.every_random_state(RandomState.of(devices.device)))
    if devices.first:
        tensors = with_prefix("model.", weights) | optimiser_tensors(state.optimiser) | random
        save_state(folder / CHECKPOINT, tensors, facts)
    devices.wait()


def load(state: State, folder: Path, devices: Devices, *, corpus: str) -> bool:
    """Restore `state` from the checkpoint in `folder`.

    Return False, without changes, if there is none.

    Raises:
        CheckpointError: the file is damaged, or corpus or number of processes differ from the run's start.
    """
    file = folder / CHECKPOINT
    if not file.exists():
        return False
    try:
        facts, tensors = read_header(file), load_file(file)
        check_origin(file, facts, devices, corpus=corpus)
        weights = without_prefix("model.", tensors)
        with torch.no_grad():
            for name, weight in state.model.named_parameters():
                weight.copy_(weights[name])
        restore_optimiser(state.optimiser, tensors)
        restore_random(tensors, devices)
        state.step, state.position = facts["step"], Position(*facts["position"])
    except CheckpointError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file}: not a checkpoint of this run: {first_line(error)}") from error
    return True
