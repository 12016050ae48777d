"""Everything that changes while training as one safetensors file, its header carrying the few numbers."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from models.disk import replacing
from training.machine.devices import Devices
from training.random_state import RandomState


def write(file: Path, tensors: dict[str, Tensor], facts: Mapping[str, object]) -> None:
    """Replaces `file` whole, in a folder in which nobody else writes.

    Raises:
        OSError: it can't be written.
    """
    for left in file.parent.glob(".tmp??????"):  # safetensors' own, which a kill has left: nobody else writes here
        left.unlink(missing_ok=True)
    with replacing(file) as beside:
        mode = beside.stat().st_mode
        try:
            save_file(tensors, beside, metadata={"state": json.dumps(facts)})
            beside.chmod(mode)  # it puts another file there, which its owner alone may read
        except SafetensorError as error:  # all that it says of a full disk
            raise OSError(errno.EIO, str(error)) from error


def facts_of(file: Path) -> dict[str, Any]:
    """The numbers in its header."""
    with safe_open(file, framework="pt") as opened:
        facts: dict[str, Any] = json.loads(opened.metadata()["state"])
    return facts


def named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under one roof of a file."""
    return {prefix + name: tensor.contiguous() for name, tensor in tensors.items()}


def digest(tensors: Mapping[str, Tensor], *, salt: str = "") -> str:
    """Hash names and values, wherever the tensors are."""
    found = hashlib.blake2b(salt.encode(), digest_size=8)
    for name, tensor in tensors.items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those that `named` put there, by their own names."""
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The moments of every weight; what else an optimiser has follows from the configuration."""
    slots = optimiser.state_dict()["state"].items()
    return {f"optimiser.{i}.{name}": x for i, tensors in slots for name, x in tensors.items()}


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Gives it the moments of a file.

    Raises:
        ValueError: the file has the weights in another order, as earlier versions had them.
    """
    slots: dict[int, dict[str, Tensor]] = {}
    for name, tensor in under("optimiser.", tensors).items():
        i, slot = name.split(".")
        slots.setdefault(int(i), {})[slot] = tensor
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    for place, weight in enumerate(weights):
        if any(x.ndim and x.shape != weight.shape for x in slots.get(place, {}).values()):  # "step" is a number
            raise ValueError(f"the moments of weight {place} are another weight's")
    optimiser.load_state_dict({"state": slots, "param_groups": optimiser.state_dict()["param_groups"]})


def random_tensors(states: Sequence[RandomState]) -> dict[str, Tensor]:
    """The random state of every process, in the order of their ranks."""
    cpu = {f"rng.cpu.{rank}": each.cpu for rank, each in enumerate(states)}
    return cpu | {f"rng.cuda.{rank}": each.cuda for rank, each in enumerate(states) if each.cuda is not None}


def restore_random(tensors: Mapping[str, Tensor], devices: Devices) -> None:
    """Brings torch's generators to where a file has those of this process."""
    states = RandomState(tensors[f"rng.cpu.{devices.rank}"], tensors.get(f"rng.cuda.{devices.rank}"))
    states.restore(devices.device)
