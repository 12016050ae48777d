"""Files of a run's state: tensors in safetensors format, with single numbers in the header."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from models.bundle.disk import replacing
from training.machine.devices import Devices, RandomState


def save_state(file: Path, tensors: dict[str, Tensor], facts: Mapping[str, object]) -> None:
    """Write `tensors` and `facts` to `file`, which is replaced atomically. No other process may write in the folder.

    Raises:
        OSError: `file` can't be written.
    """
    # Temporary files of safetensors here are from a killed process, because no other process writes in this folder.
    for left in file.parent.glob(".tmp??????"):
        left.unlink(missing_ok=True)
    with replacing(file) as beside:
        mode = beside.stat().st_mode
        save_file(tensors, beside, metadata={"state": json.dumps(facts)})
        beside.chmod(mode)  # Only the owner could read the file of safetensors, so the usual permissions are set.


def read_header(file: Path) -> dict[str, Any]:
    with safe_open(file, framework="pt") as opened:
        facts: dict[str, Any] = json.loads(opened.metadata()["state"])
    return facts


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under their names with `prefix` added."""
    return {prefix + name: tensor.contiguous() for name, tensor in tensors.items()}


def digest(tensors: Mapping[str, Tensor], *, salt: str = "") -> str:
    """Return a hash of `salt` and of the tensors' names and values. The tensors may be on any device."""
    found = hashlib.blake2b(salt.encode(), digest_size=8)
    for name, tensor in tensors.items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's moments of every weight. The remaining state follows from the configuration."""
    slots = optimiser.state_dict()["state"].items()
    return {f"optimiser.{i}.{name}": x for i, tensors in slots for name, x in tensors.items()}


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the optimiser's moments from a file.

    Raises:
        ValueError: a weight and its moments differ in shape. Torch's fused AdamW does not check shapes, and would write
            beyond the end of the moments.
    """
    slots: dict[int, dict[str, Tensor]] = {}
    for name, tensor in without_prefix("optimiser.", tensors).items():
        i, slot = name.split(".")
        slots.setdefault(int(i), {})[slot] = tensor
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    for place, weight in enumerate(weights):
        # The optimiser's value "step" is a number, so its shape is not compared.
        if any(x.ndim and x.shape != weight.shape for x in slots.get(place, {}).values()):
            raise ValueError(f"the moments of weight {place} have another weight's shape")
    optimiser.load_state_dict({"state": slots, "param_groups": optimiser.state_dict()["param_groups"]})


def random_tensors(states: Sequence[RandomState]) -> dict[str, Tensor]:
    """Return the random states of all processes as tensors for a checkpoint. Each name contains the rank."""
    cpu = {f"rng.cpu.{rank}": each.cpu for rank, each in enumerate(states)}
    return cpu | {f"rng.cuda.{rank}": each.cuda for rank, each in enumerate(states) if each.cuda is not None}


def restore_random(tensors: Mapping[str, Tensor], devices: Devices) -> None:
    states = RandomState(tensors[f"rng.cpu.{devices.rank}"], tensors.get(f"rng.cuda.{devices.rank}"))
    states.restore(devices.device)
