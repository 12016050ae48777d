"""A pre-training run that was killed goes on as if it had not been.

Besides what `training.checkpoint` keeps, it has the position in the corpus: how many sentences fit into a step does not
follow from its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from models.errors import first_line
from training.checkpoint import CHECKPOINT, CheckpointError, check_origin
from training.machine.devices import Devices
from training.pretraining.model import MaskedLM
from training.pretraining.sequences import START, Position
from training.random_state import RandomState
from training.state_file import (
    facts_of,
    named,
    optimiser_tensors,
    random_tensors,
    restore_optimiser,
    restore_random,
    under,
    write,
)


@dataclass
class State:
    """What changes while pre-training."""

    model: MaskedLM
    optimiser: torch.optim.Optimizer
    step: int = 0
    position: Position = START
    """Where in the corpus the next step begins."""


def save(state: State, folder: Path, devices: Devices, *, corpus: str) -> None:
    """Writes the checkpoint of `state`, over `corpus` (its digest)."""
    facts = {"step": state.step, "position": state.position, "corpus": corpus, "processes": devices.count}
    weights = {name: weight.detach() for name, weight in state.model.named_parameters()}  # a tied one once
    random = random_tensors(devices.every(RandomState.of(devices.device)))
    if devices.first:
        tensors = named("model.", weights) | optimiser_tensors(state.optimiser) | random
        write(folder / CHECKPOINT, tensors, facts)
    devices.wait()


def load(state: State, folder: Path, devices: Devices, *, corpus: str) -> bool:
    """Brings `state` to where the checkpoint in `folder` has it; False, and nothing done, if there is none.

    Raises:
        CheckpointError: the file is damaged, or corpus or number of processes are not those the run began with.
    """
    file = folder / CHECKPOINT
    if not file.exists():
        return False
    try:
        facts, tensors = facts_of(file), load_file(file)
        check_origin(file, facts, devices, corpus=corpus)
        weights = under("model.", tensors)
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
