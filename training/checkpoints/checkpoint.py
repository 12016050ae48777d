"""Checkpoints: everything that changes during training in one file, so that a killed run resumes exactly.

The file is in safetensors format, with single numbers in its header, and it is replaced atomically. The learning rate
and the position in the corpus are not stored, because they follow from the step and the seed. Of frozen weights only
the digest is stored, because the backbone has the weights. Several processes share one file. The first process writes
it, with the random states of all processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from models.encoder.encoder import Encoder
from models.errors import Refused, first_line
from training.machine.devices import Devices, RandomState
from training.machine.state_file import (
    digest,
    optimiser_tensors,
    random_tensors,
    read_header,
    restore_optimiser,
    restore_random,
    save_state,
    with_prefix,
    without_prefix,
)
from training.objectives.base import Objective

CHECKPOINT = "checkpoint.safetensors"


class CheckpointError(Refused):
    """A checkpoint is damaged or belongs to another run. The message names the file."""


@dataclass(frozen=True)
class Best:
    """The best evaluation so far."""

    step: int
    score: float


class StoredProgress(NamedTuple):
    """A run's progress as stored in its checkpoint."""

    step: int
    best: Best
    corpus: str
    """Digest of the corpus."""


@dataclass
class State:
    """Everything that changes during training."""

    encoder: Encoder
    objective: Objective
    optimiser: torch.optim.Optimizer
    rng: torch.Generator
    """Generator of the objective. Dropout draws from torch's own generator."""
    scaler: torch.amp.GradScaler
    """Scaler of the loss in fp16. It does nothing in other precisions."""
    step: int = 0
    best: Best | None = None
    cached_vectors: dict[str, int] = field(default_factory=dict)
    """Number of cached vectors in each file of a frozen encoder's cache."""
    frozen: str = field(init=False)
    """Digest of the encoder's frozen weights."""

    def __post_init__(self) -> None:
        self.frozen = _frozen(self.encoder)


@dataclass(frozen=True)
class Snapshot:
    """Copies of the state before a step, without weights and optimiser moments."""

    random: RandomState
    rng: Tensor
    objective: dict[str, Tensor]
    """Running statistics of the objective, without its weights."""
    scale: Tensor
    """Scale of the loss, 1 except in fp16. It stays on the device, because the host would wait to read it."""

    @classmethod
    def of(cls, state: State) -> Self:
        """Copy the current state."""
        weights = {name for name, _ in state.objective.named_parameters()}
        statistics = {name: x.clone() for name, x in state.objective.state_dict().items() if name not in weights}
        scale = state.scaler.scale(torch.ones((), device=state.rng.device))
        return cls(RandomState.of(state.rng.device), state.rng.get_state(), statistics, scale)


def save(state: State, folder: Path, devices: Devices, *, corpus: str) -> None:
    """Write the checkpoint of `state` for a corpus with digest `corpus`, and remove outdated best weights."""
    facts = {
        "step": state.step,
        "best": asdict(state.best) if state.best else None,
        "corpus": corpus,
        "frozen": state.frozen,
        "scaler": state.scaler.state_dict(),
        "processes": devices.count,
        "recalled": state.cached_vectors,
    }
    tensors = _tensors(state) | random_tensors(devices.every_random_state(RandomState.of(devices.device)))
    if devices.first:
        save_state(folder / CHECKPOINT, tensors, facts)
        for file in folder.glob("best-*.safetensors"):
            if state.best is None or file != _best_file(folder, state.best):
                file.unlink()
    devices.wait()


def load(state: State, folder: Path, devices: Devices, *, corpus: str) -> bool:
    """Restore `state` from the checkpoint in `folder`.

    Return False, without changes, if there is no checkpoint.

    Raises:
        CheckpointError: the file is damaged, or backbone, corpus or number of processes have changed since the run's
            start.
    """
    file = folder / CHECKPOINT
    if not file.exists():
        return False
    try:
        facts = read_header(file)
        check_origin(file, facts, devices, corpus=corpus)
        _check_frozen(file, facts, state.frozen)
        tensors = load_file(file)
        _restore(state, tensors)
        restore_random(tensors, devices)
        state.scaler.load_state_dict(facts["scaler"])
    except CheckpointError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file}: not a checkpoint of this run: {first_line(error)}") from error
    state.step = facts["step"]
    state.best = Best(**facts["best"]) if facts["best"] else None
    state.cached_vectors = facts.get("recalled", {})  # Earlier versions did not write this field.
    return True


def stored_progress(folder: Path) -> StoredProgress:
    """Read the progress of a run from the checkpoint in `folder`.

    Raises:
        CheckpointError: there is no checkpoint yet, or it is damaged.
    """
    file = folder / CHECKPOINT
    if not file.exists():
        raise CheckpointError(f"{folder}: this run has no checkpoint yet")
    try:
        facts = read_header(file)
        return StoredProgress(facts["step"], Best(**facts["best"]), facts["corpus"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: not a checkpoint of this run: {first_line(error)}") from error


def check_origin(file: Path, facts: Mapping[str, Any], devices: Devices, *, corpus: str) -> None:
    """Check that corpus and number of processes have not changed since the run's start.

    Raises:
        CheckpointError: the corpus or the number of processes has changed.
    """
    check_corpus(file, facts["corpus"], corpus)
    if facts["processes"] != devices.count:
        raise CheckpointError(
            f"{file}: the run has {facts['processes']} processes and can't go on with {devices.count}"
        )


def check_corpus(file: Path, begun: str, corpus: str) -> None:
    """Check, by digest, that the corpus has not changed since the start of the run that wrote `file`.

    Raises:
        CheckpointError: the corpus has changed.
    """
    if begun != corpus:
        raise CheckpointError(f"{file}: the corpus has changed since; its order can't be taken up")


def save_snapshot(state: State, moment: Snapshot, file: Path, *, step: int, sentences: Sequence[str]) -> None:
    """Write a diverged step for replay: weights and optimiser of `state`, the rest from `moment`, and the sentences."""
    tensors = _tensors(state) | random_tensors([moment.random]) | with_prefix("objective.", moment.objective)
    tensors |= {"rng.objective": moment.rng, "scale": moment.scale}
    save_state(file, tensors, {"step": step, "sentences": list(sentences), "frozen": state.frozen})


def load_snapshot(state: State, file: Path, devices: Devices) -> list[str]:
    """Restore `state` from a file of `save_snapshot`, and return the sentences.

    Raises:
        CheckpointError: the file is missing, damaged, or of another run, or the backbone has changed.
    """
    try:
        facts, tensors = read_header(file), load_file(file)
        _check_frozen(file, facts, state.frozen)
        _restore(state, tensors)
        restore_random(tensors, devices)
        if "scale" in tensors:  # Earlier versions did not write this tensor.
            state.scaler.load_state_dict({**state.scaler.state_dict(), "scale": tensors["scale"].item()})
        state.step = facts["step"]
        return [str(sentence) for sentence in facts["sentences"]]
    except CheckpointError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file}: not a step of this run: {first_line(error)}") from error


def save_best(state: State, best: Best, folder: Path) -> None:
    """Write the weights of the best evaluation. The next checkpoint refers to them."""
    facts = {**asdict(best), "frozen": state.frozen}
    save_state(_best_file(folder, best), with_prefix("", _trained(state.encoder)), facts)


def load_best(encoder: Encoder, best: Best, folder: Path) -> None:
    """Load the weights of the best evaluation into `encoder`.

    Raises:
        CheckpointError: their file is missing or damaged, or the backbone has changed.
    """
    file = _best_file(folder, best)
    try:
        _check_frozen(file, read_header(file), _frozen(encoder))
        _load_trained(load_file(file), encoder)
    except CheckpointError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file}: not the best weights of this run: {first_line(error)}") from error


def _best_file(folder: Path, best: Best) -> Path:
    return folder / f"best-{best.step:08d}.safetensors"


def _tensors(state: State) -> dict[str, Tensor]:
    return {
        **with_prefix("encoder.", _trained(state.encoder)),
        **with_prefix("objective.", state.objective.state_dict()),
        **optimiser_tensors(state.optimiser),
        "rng.objective": state.rng.get_state(),
    }


def _restore(state: State, tensors: dict[str, Tensor]) -> None:
    _load_trained(without_prefix("encoder.", tensors), state.encoder)
    state.objective.load_state_dict(without_prefix("objective.", tensors))
    restore_optimiser(state.optimiser, tensors)
    state.rng.set_state(tensors["rng.objective"])


def _trained(encoder: Encoder) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in encoder.named_parameters() if weight.requires_grad}


def _frozen(encoder: Encoder) -> str:
    """Return the digest of all weights that `_trained` leaves out."""
    trained = _trained(encoder)
    return digest({name: x for name, x in encoder.state_dict().items() if name not in trained})


def _check_frozen(file: Path, facts: Mapping[str, Any], frozen: str) -> None:
    if facts.get("frozen", frozen) != frozen:  # Earlier versions wrote no digest, but all weights.
        raise CheckpointError(f"{file}: the backbone has changed since; the run can't go on from another one")


def _load_trained(tensors: dict[str, Tensor], encoder: Encoder) -> None:
    """Load trained weights.

    Files of earlier versions contain the frozen weights too.

    Raises:
        RuntimeError: a weight is missing, unknown, or has another shape.
    """
    missing, unexpected = encoder.load_state_dict(tensors, strict=False)
    if odd := [*(name for name in missing if name in _trained(encoder)), *unexpected]:
        raise RuntimeError(f"{odd[0]} is missing or unknown")
