"""Checkpoints: one file with everything that changes during a run, so that a killed run resumes exactly.

Training and pre-training share the format: safetensors, with single numbers in the header. The file is replaced
atomically. The learning rate is not stored, because it follows from the step. For frozen weights, only a digest is
stored, because the weights themselves are in the backbone's files. Several processes share one file. The first process
writes this file, with the random states of all processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from models.encoder.encoder import Encoder
from models.errors import Refused, first_line
from training.machine import state_file
from training.machine.devices import Devices, RandomState
from training.machine.state_file import with_prefix, without_prefix
from training.objectives.base import Objective

CHECKPOINT = "checkpoint.safetensors"


class CheckpointError(Refused):
    """A checkpoint is damaged or belongs to another run. The message names the file."""


class Resumable(Protocol):
    """Everything that changes during a run."""

    step: int
    frozen: str
    """Digest of the frozen weights, or "" if there are none."""
    inputs: Mapping[str, str]
    """Digests of further inputs that must not change during a run, by their descriptions."""

    def facts(self) -> dict[str, Any]:
        """Return the numbers that the checkpoint's header stores."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that the checkpoint stores, except torch's random states."""

    def restore_facts(self, facts: Mapping[str, Any]) -> None:
        """Restore the state's numbers from the header of a checkpoint."""

    def restore_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state's tensors from the tensors of a checkpoint."""


def save(state: Resumable, folder: Path, devices: Devices, *, corpus: str) -> None:
    """Write the checkpoint of `state` for a corpus with digest `corpus`."""
    facts = {**state.facts(), "corpus": corpus, "processes": devices.count}
    tensors = state.tensors() | state_file.random_tensors(devices.every_random_state(RandomState.of(devices.device)))
    if devices.first:
        state_file.save_state(folder / CHECKPOINT, tensors, facts)
    devices.wait()


def load(state: Resumable, folder: Path, devices: Devices, *, corpus: str) -> bool:
    """Restore `state` from the checkpoint in `folder`.

    Return False, without changes, if there is no checkpoint.

    Raises:
        CheckpointError: the file is damaged, or backbone, corpus, number of processes or another input have changed
            since the run's start.
    """
    file = folder / CHECKPOINT
    if not file.exists():
        return False
    with _reading(file, "a checkpoint"):
        facts = state_file.read_header(file)
        check_corpus(file, facts["corpus"], corpus)
        if facts["processes"] != devices.count:
            raise CheckpointError(
                f"{file}: the run started with {facts['processes']} processes and can't resume with {devices.count}"
            )
        _check_frozen(file, facts, state.frozen)
        _check_inputs(file, facts, state.inputs)
        tensors = load_file(file)
        state.restore_tensors(tensors)
        state_file.restore_random(tensors, devices)
        state.restore_facts(facts)
    return True


def check_corpus(file: Path, begun: str, corpus: str) -> None:
    """Check that the corpus has not changed since the start of the run that wrote `file`.

    `begun` is the digest of the corpus at the start of the run, and `corpus` is the digest of the corpus now.

    Raises:
        CheckpointError: the corpus has changed.
    """
    if begun != corpus:
        raise CheckpointError(f"{file}: the corpus has changed since the checkpoint, so its order can't be restored")


@contextmanager
def _reading(file: Path, what: str) -> Iterator[None]:
    """Convert the errors that a damaged file causes inside the `with` block to a `CheckpointError`.

    `what` names the expected content in the message.
    """
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file}: not {what} of this run: {first_line(error)}") from error


# The state of training, with the best weights so far and the snapshot of a diverged step.


@dataclass(frozen=True)
class Best:
    """Step and score of the best evaluation so far."""

    step: int
    score: float


@dataclass
class State:
    """Everything that changes during training, except the position in the corpus.

    The position follows from the step and the seed.
    """

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
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Digests of the selection's data, the teacher and the initial weights, as far as the run needs them."""
    frozen: str = field(init=False)
    """Digest of the encoder's frozen weights."""

    def __post_init__(self) -> None:
        self.frozen = _frozen(self.encoder)

    def facts(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "best": asdict(self.best) if self.best else None,
            "frozen": self.frozen,
            "inputs": dict(self.inputs),
            "scaler": self.scaler.state_dict(),
            "recalled": self.cached_vectors,
        }

    def tensors(self) -> dict[str, Tensor]:
        return {
            **with_prefix("encoder.", _trained(self.encoder)),
            **with_prefix("objective.", self.objective.state_dict()),
            **state_file.optimiser_tensors(self.optimiser),
            "rng.objective": self.rng.get_state(),
        }

    def restore_facts(self, facts: Mapping[str, Any]) -> None:
        self.scaler.load_state_dict(facts["scaler"])
        self.step = facts["step"]
        self.best = Best(**facts["best"]) if facts["best"] else None
        self.cached_vectors = facts["recalled"]

    def restore_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        _load_trained(without_prefix("encoder.", tensors), self.encoder)
        self.objective.load_state_dict(without_prefix("objective.", tensors))
        state_file.restore_optimiser(self.optimiser, tensors)
        self.rng.set_state(tensors["rng.objective"])


def stored_progress(folder: Path) -> tuple[int, Best, str]:
    """Read the step, the best evaluation and the corpus's digest from the checkpoint in `folder`.

    Raises:
        CheckpointError: the run has no checkpoint yet, or the checkpoint is damaged.
    """
    file = folder / CHECKPOINT
    if not file.exists():
        raise CheckpointError(f"{folder}: this run has no checkpoint yet")
    with _reading(file, "a checkpoint"):
        facts = state_file.read_header(file)
        return facts["step"], Best(**facts["best"]), facts["corpus"]


def save_best(state: State, best: Best, folder: Path) -> None:
    """Write the weights of the best evaluation to their own file. The next checkpoint refers to this file."""
    facts = {**asdict(best), "frozen": state.frozen}
    state_file.save_state(_best_file(folder, best), with_prefix("", _trained(state.encoder)), facts)


def load_best(encoder: Encoder, best: Best, folder: Path) -> None:
    """Load the weights of the best evaluation into `encoder`.

    Raises:
        CheckpointError: the file of the weights is missing or damaged, or the backbone has changed.
    """
    file = _best_file(folder, best)
    with _reading(file, "the best weights"):
        _check_frozen(file, state_file.read_header(file), _frozen(encoder))
        _load_trained(load_file(file), encoder)


def remove_outdated_best(state: State, folder: Path) -> None:
    """Remove the weights of earlier best evaluations, to which the last checkpoint no longer refers."""
    for file in folder.glob("best-*.safetensors"):
        if state.best is None or file != _best_file(folder, state.best):
            file.unlink()


def _best_file(folder: Path, best: Best) -> Path:
    return folder / f"best-{best.step:08d}.safetensors"


@dataclass(frozen=True)
class Snapshot:
    """A copy of the state before a step, without weights and optimiser moments."""

    random: RandomState
    rng: Tensor
    objective: dict[str, Tensor]
    """Running statistics of the objective, without its weights."""
    scale: Tensor
    """Loss scale, which is 1 except in fp16.

    It stays on the device, because a copy to the host would wait for the device.
    """

    @classmethod
    def of(cls, state: State) -> Self:
        weights = {name for name, _ in state.objective.named_parameters()}
        statistics = {name: x.clone() for name, x in state.objective.state_dict().items() if name not in weights}
        scale = state.scaler.scale(torch.ones((), device=state.rng.device))
        return cls(RandomState.of(state.rng.device), state.rng.get_state(), statistics, scale)


def save_snapshot(state: State, snapshot: Snapshot, file: Path, *, step: int, sentences: Sequence[str]) -> None:
    """Write the state from before a diverged step, and the step's sentences, so that the step can be replayed.

    `step` is the number of steps before the diverged one. Weights and optimiser moments are from `state`, because the
    diverged step did not change them. Everything else is from `snapshot`.
    """
    tensors = (
        state.tensors() | state_file.random_tensors([snapshot.random]) | with_prefix("objective.", snapshot.objective)
    )
    tensors |= {"rng.objective": snapshot.rng, "scale": snapshot.scale}
    state_file.save_state(file, tensors, {"step": step, "sentences": list(sentences), "frozen": state.frozen})


def load_snapshot(state: State, file: Path, devices: Devices) -> list[str]:
    """Restore `state` to its values before a diverged step, and return the sentences of this step.

    `save_snapshot` has written `file`.

    Raises:
        CheckpointError: the file is missing, damaged, or from a different run, or the backbone has changed.
    """
    with _reading(file, "a step"):
        facts, tensors = state_file.read_header(file), load_file(file)
        _check_frozen(file, facts, state.frozen)
        state.restore_tensors(tensors)
        state_file.restore_random(tensors, devices)
        state.scaler.load_state_dict({**state.scaler.state_dict(), "scale": tensors["scale"].item()})
        state.step = facts["step"]
        return [str(sentence) for sentence in facts["sentences"]]


def _trained(encoder: Encoder) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in encoder.named_parameters() if weight.requires_grad}


def _frozen(encoder: Encoder) -> str:
    """Return the digest of all weights and buffers of the encoder that are not trained."""
    trained = _trained(encoder)
    return state_file.digest({name: x for name, x in encoder.state_dict().items() if name not in trained})


def _check_frozen(file: Path, facts: Mapping[str, Any], frozen: str) -> None:
    if facts.get("frozen", "") != frozen:  # Pre-training freezes no weights and stores no digest.
        raise CheckpointError(f"{file}: the backbone has changed since the checkpoint, so the run can't be resumed")


def _check_inputs(file: Path, facts: Mapping[str, Any], inputs: Mapping[str, str]) -> None:
    begun = facts.get("inputs", {})  # Pre-training and earlier versions store no digests.
    if changed := [name for name, digest in inputs.items() if begun.get(name, digest) != digest]:
        raise CheckpointError(
            f"{file}: {changed[0]} changed since the checkpoint, so the run can't be resumed: restore the earlier "
            f"files, or remove {file.parent} to begin again"
        )


def _load_trained(tensors: Mapping[str, Tensor], encoder: Encoder) -> None:
    """Load `tensors`, the trained weights from a file, into the encoder.

    Raises:
        RuntimeError: a weight is missing, unknown, or has another shape.
    """
    missing, unexpected = encoder.load_state_dict(tensors, strict=False)
    if odd := [*(name for name in missing if name in _trained(encoder)), *unexpected]:
        raise RuntimeError(f"{odd[0]} is missing or unknown")
