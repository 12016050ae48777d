"""A run that was killed goes on as if it had not been: everything that changes while training, in one file.

The file is safetensors, its header carrying the few numbers, and is replaced whole. What is not here follows from the
step: the learning rate, and the position in the corpus, whose order depends on the seed alone.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.disk import replacing
from models.encoder import Encoder
from training.objectives.base import Objective

CHECKPOINT = "checkpoint.safetensors"


class CheckpointError(ValueError):
    """A checkpoint is damaged or belongs to another run; the message names the file."""


@dataclass(frozen=True)
class Best:
    """The best evaluation so far."""

    step: int
    score: float


@dataclass
class State:
    """What changes while training."""

    encoder: Encoder
    objective: Objective
    optimiser: torch.optim.Optimizer
    rng: torch.Generator
    """The objective's own; dropout draws from torch's."""
    step: int = 0
    best: Best | None = None


def save(state: State, folder: Path, *, corpus: str) -> None:
    """Writes the checkpoint of `state`, over `corpus` (its digest), and removes best weights that are no more."""
    facts = {
        "step": state.step,
        "best": asdict(state.best) if state.best else None,
        "corpus": corpus,
    }
    _write(folder / CHECKPOINT, _tensors(state), facts)
    for file in folder.glob("best-*.safetensors"):
        if state.best is None or file != _best_file(folder, state.best):
            file.unlink()


def load(state: State, folder: Path, *, corpus: str) -> bool:
    """Brings `state` to where the checkpoint in `folder` has it; False, and nothing done, if there is none.

    Raises:
        CheckpointError: the file is damaged, or the corpus is not the one the run began with.
    """
    file = folder / CHECKPOINT
    if not file.exists():
        return False
    try:
        with safe_open(file, framework="pt") as opened:
            facts = json.loads(opened.metadata()["state"])
        if facts["corpus"] != corpus:
            raise CheckpointError(f"{file}: the corpus has changed since; its order can't be taken up")
        _restore(state, load_file(file))
    except CheckpointError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file}: not a checkpoint of this run: {_first_line(error)}") from error
    state.step = facts["step"]
    state.best = Best(**facts["best"]) if facts["best"] else None
    return True


def save_best(encoder: Encoder, best: Best, folder: Path) -> None:
    """Writes the weights of the best evaluation; the next checkpoint makes them the run's."""
    _write(_best_file(folder, best), _named("", encoder.state_dict()), asdict(best))


def load_best(encoder: Encoder, best: Best, folder: Path) -> None:
    """Puts the weights of the best evaluation into `encoder`.

    Raises:
        CheckpointError: their file is missing or damaged.
    """
    file = _best_file(folder, best)
    try:
        encoder.load_state_dict(load_file(file))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CheckpointError(f"{file}: not the best weights of this run: {_first_line(error)}") from error


def _best_file(folder: Path, best: Best) -> Path:
    return folder / f"best-{best.step:08d}.safetensors"


def _tensors(state: State) -> dict[str, Tensor]:
    optimiser = state.optimiser.state_dict()["state"]
    tensors = {
        **_named("encoder.", state.encoder.state_dict()),
        **_named("objective.", state.objective.state_dict()),
        **{f"optimiser.{i}.{name}": x for i, slots in optimiser.items() for name, x in slots.items()},
        "rng.objective": state.rng.get_state(),
        "rng.cpu": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    return tensors


def _restore(state: State, tensors: dict[str, Tensor]) -> None:
    slots: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _under("optimiser.", tensors).items():
        i, slot = name.split(".")
        slots.setdefault(int(i), {})[slot] = tensor
    state.encoder.load_state_dict(_under("encoder.", tensors))
    state.objective.load_state_dict(_under("objective.", tensors))
    state.optimiser.load_state_dict({"state": slots, "param_groups": state.optimiser.state_dict()["param_groups"]})
    state.rng.set_state(tensors["rng.objective"])
    torch.set_rng_state(tensors["rng.cpu"])
    if "rng.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["rng.cuda"])


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor.contiguous() for name, tensor in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def _write(file: Path, tensors: dict[str, Tensor], facts: Mapping[str, object]) -> None:
    with replacing(file) as beside:
        try:
            save_file(tensors, beside, metadata={"state": json.dumps(facts)})
        except SafetensorError as error:  # all that it says of a full disk
            raise OSError(errno.EIO, str(error)) from error


def _first_line(error: Exception) -> str:
    """Torch lists every tensor that does not fit, a line each."""
    return str(error).partition("\n")[0]
