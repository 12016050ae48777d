"""A run that was killed goes on as if it had not been: everything that changes while training, in one file.

The file is safetensors, its header carrying the few numbers, and is replaced whole. What is not here follows from the
step: the learning rate, and the position in the corpus, whose order depends on the seed alone. Frozen weights are not
here either: the backbone has them, and the file has their digest. Several processes share one file: the first writes
it, with the random state of each.
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

from models.encoder import Encoder
from models.errors import Refused, first_line
from training.machine.devices import Devices
from training.objectives.base import Objective
from training.random_state import RandomState
from training.state_file import (
    digest,
    facts_of,
    named,
    optimiser_tensors,
    random_tensors,
    restore_optimiser,
    restore_random,
    under,
    write,
)

CHECKPOINT = "checkpoint.safetensors"


class CheckpointError(Refused):
    """A checkpoint is damaged or belongs to another run; the message names the file."""


@dataclass(frozen=True)
class Best:
    """The best evaluation so far."""

    step: int
    score: float


class Kept(NamedTuple):
    """What a checkpoint says of its run."""

    step: int
    best: Best
    corpus: str
    """Its digest."""


@dataclass
class State:
    """What changes while training."""

    encoder: Encoder
    objective: Objective
    optimiser: torch.optim.Optimizer
    rng: torch.Generator
    """The objective's own; dropout draws from torch's."""
    scaler: torch.amp.GradScaler
    """Of the loss in fp16; otherwise it does nothing."""
    step: int = 0
    best: Best | None = None
    recalled: dict[str, int] = field(default_factory=dict)
    """How many vectors of a frozen encoder are kept, by the name of their file."""
    frozen: str = field(init=False)
    """Digest of the encoder's frozen weights."""

    def __post_init__(self) -> None:
        self.frozen = _frozen(self.encoder)


@dataclass(frozen=True)
class Moment:
    """What a step begins with besides weights and the optimiser's moments, copied."""

    random: RandomState
    rng: Tensor
    objective: dict[str, Tensor]
    """Its running statistics; weights are left where they are."""
    scale: Tensor
    """Of the loss, 1 but in fp16; still on the device, for to read it is to wait."""

    @classmethod
    def of(cls, state: State) -> Self:
        """As it is now."""
        weights = {name for name, _ in state.objective.named_parameters()}
        statistics = {name: x.clone() for name, x in state.objective.state_dict().items() if name not in weights}
        scale = state.scaler.scale(torch.ones((), device=state.rng.device))
        return cls(RandomState.of(state.rng.device), state.rng.get_state(), statistics, scale)


def save(state: State, folder: Path, devices: Devices, *, corpus: str) -> None:
    """Writes the checkpoint of `state`, over `corpus` (its digest), and removes best weights that are no more."""
    facts = {
        "step": state.step,
        "best": asdict(state.best) if state.best else None,
        "corpus": corpus,
        "frozen": state.frozen,
        "scaler": state.scaler.state_dict(),
        "processes": devices.count,
        "recalled": state.recalled,
    }
    tensors = _tensors(state) | random_tensors(devices.every(RandomState.of(devices.device)))
    if devices.first:
        write(folder / CHECKPOINT, tensors, facts)
        for file in folder.glob("best-*.safetensors"):
            if state.best is None or file != _best_file(folder, state.best):
                file.unlink()
    devices.wait()


def load(state: State, folder: Path, devices: Devices, *, corpus: str) -> bool:
    """Brings `state` to where the checkpoint in `folder` has it; False, and nothing done, if there is none.

    Raises:
        CheckpointError: the file is damaged, or backbone, corpus or number of processes are not those the run began
            with.
    """
    file = folder / CHECKPOINT
    if not file.exists():
        return False
    try:
        facts = facts_of(file)
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
    state.recalled = facts.get("recalled", {})  # earlier files have none
    return True


def kept(folder: Path) -> Kept:
    """What the checkpoint in `folder` says of its run.

    Raises:
        CheckpointError: there is none yet, or it is damaged.
    """
    file = folder / CHECKPOINT
    if not file.exists():
        raise CheckpointError(f"{folder}: this run has no checkpoint yet")
    try:
        facts = facts_of(file)
        return Kept(facts["step"], Best(**facts["best"]), facts["corpus"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: not a checkpoint of this run: {first_line(error)}") from error


def check_origin(file: Path, facts: Mapping[str, Any], devices: Devices, *, corpus: str) -> None:
    """Raises `CheckpointError` if corpus or number of processes are not those the run began with."""
    check_corpus(file, facts["corpus"], corpus)
    if facts["processes"] != devices.count:
        raise CheckpointError(
            f"{file}: the run has {facts['processes']} processes and can't go on with {devices.count}"
        )


def check_corpus(file: Path, begun: str, corpus: str) -> None:
    """Raises `CheckpointError` if the corpus is another than the one the run of `file` began with; by their digests."""
    if begun != corpus:
        raise CheckpointError(f"{file}: the corpus has changed since; its order can't be taken up")


def save_moment(state: State, moment: Moment, file: Path, *, step: int, sentences: Sequence[str]) -> None:
    """Writes weights and optimiser as they are, the rest as `moment` has it, and the sentences of the step to take."""
    tensors = _tensors(state) | random_tensors([moment.random]) | named("objective.", moment.objective)
    tensors |= {"rng.objective": moment.rng, "scale": moment.scale}
    write(file, tensors, {"step": step, "sentences": list(sentences), "frozen": state.frozen})


def load_moment(state: State, file: Path, devices: Devices) -> list[str]:
    """Brings `state` to what `save_moment` wrote, and gives the sentences.

    Raises:
        CheckpointError: the file is missing, damaged, or of another run, or the backbone has changed since.
    """
    try:
        facts, tensors = facts_of(file), load_file(file)
        _check_frozen(file, facts, state.frozen)
        _restore(state, tensors)
        restore_random(tensors, devices)
        if "scale" in tensors:  # earlier files have none
            state.scaler.load_state_dict({**state.scaler.state_dict(), "scale": tensors["scale"].item()})
        state.step = facts["step"]
        return [str(sentence) for sentence in facts["sentences"]]
    except CheckpointError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file}: not a step of this run: {first_line(error)}") from error


def save_best(state: State, best: Best, folder: Path) -> None:
    """Writes the weights of the best evaluation; the next checkpoint makes them the run's."""
    facts = {**asdict(best), "frozen": state.frozen}
    write(_best_file(folder, best), named("", _trained(state.encoder)), facts)


def load_best(encoder: Encoder, best: Best, folder: Path) -> None:
    """Puts the weights of the best evaluation into `encoder`.

    Raises:
        CheckpointError: their file is missing or damaged, or the backbone has changed since.
    """
    file = _best_file(folder, best)
    try:
        _check_frozen(file, facts_of(file), _frozen(encoder))
        _put(load_file(file), encoder)
    except CheckpointError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file}: not the best weights of this run: {first_line(error)}") from error


def _best_file(folder: Path, best: Best) -> Path:
    return folder / f"best-{best.step:08d}.safetensors"


def _tensors(state: State) -> dict[str, Tensor]:
    return {
        **named("encoder.", _trained(state.encoder)),
        **named("objective.", state.objective.state_dict()),
        **optimiser_tensors(state.optimiser),
        "rng.objective": state.rng.get_state(),
    }


def _restore(state: State, tensors: dict[str, Tensor]) -> None:
    _put(under("encoder.", tensors), state.encoder)
    state.objective.load_state_dict(under("objective.", tensors))
    restore_optimiser(state.optimiser, tensors)
    state.rng.set_state(tensors["rng.objective"])


def _trained(encoder: Encoder) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in encoder.named_parameters() if weight.requires_grad}


def _frozen(encoder: Encoder) -> str:
    """The digest of everything that `_trained` leaves out."""
    trained = _trained(encoder)
    return digest({name: x for name, x in encoder.state_dict().items() if name not in trained})


def _check_frozen(file: Path, facts: Mapping[str, Any], frozen: str) -> None:
    if facts.get("frozen", frozen) != frozen:  # earlier files have none, and all weights
        raise CheckpointError(f"{file}: the backbone has changed since; the run can't go on from another one")


def _put(tensors: dict[str, Tensor], encoder: Encoder) -> None:
    """Load trained weights; files of earlier versions have the frozen ones, too.

    Raises:
        RuntimeError: a weight is missing, unknown, or has another shape.
    """
    missing, unexpected = encoder.load_state_dict(tensors, strict=False)
    if odd := [*(name for name in missing if name in _trained(encoder)), *unexpected]:
        raise RuntimeError(f"{odd[0]} is missing or unknown")
