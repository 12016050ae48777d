"""Transforms that are applied to pooled vectors before normalisation.

They are fitted to data, and stored with the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from models.bundle.bundle import TRANSFORM
from models.encoder.dense import Layers
from models.encoder.flow import Flow


class Affine(nn.Module):
    """Affine map (x - mean) @ matrix: (N, D) to (N, D')."""

    kind: ClassVar = "affine"
    mean: Tensor
    matrix: Tensor

    def __init__(self, *, dim: int, out: int) -> None:
        super().__init__()
        self.dim, self.out = dim, out
        self.sizes = {"dim": dim, "out": out}
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("matrix", torch.zeros(dim, out))

    @classmethod
    def of(cls, mean: Tensor, matrix: Tensor) -> Self:
        """Create the map from a mean (D,) and a matrix (D, D')."""
        made = cls(dim=matrix.shape[0], out=matrix.shape[1]).to(matrix)
        made.load_state_dict({"mean": mean, "matrix": matrix})
        return made

    def forward(self, pooled: Tensor) -> Tensor:
        return (pooled - self.mean) @ self.matrix

    def bias(self) -> Tensor:
        """Return the vector b (D',) of the equivalent form x @ matrix + b."""
        return -(self.mean.double() @ self.matrix.double()).to(self.matrix.dtype)


Transform = Affine | Flow | Layers

TRANSFORMS: dict[str, Callable[..., Transform]] = {"affine": Affine, "flow": Flow, "dense": Layers}
"""Transforms by their names in a manifest. The sizes in the manifest are the arguments of the constructor."""


def described(transform: Transform | None) -> dict[str, Any] | None:
    """Return the manifest's description of a transform, which is its kind and sizes, or None without a transform."""
    return None if transform is None else {"kind": transform.kind, **transform.sizes}


def save(transform: Transform, folder: Path) -> None:
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in transform.state_dict().items()}
    save_file(weights, folder / TRANSFORM)


def load(folder: Path, description: Mapping[str, Any]) -> Transform:
    """Load the transform whose weights are in `folder`. `description` is a result of `described`.

    Raises:
        ValueError: the kind is unknown, or weights and sizes don't match; the message names the file.
    """
    file = folder / TRANSFORM
    kind, sizes = description.get("kind"), {key: size for key, size in description.items() if key != "kind"}
    if kind not in TRANSFORMS:
        raise ValueError(f"{folder}: transform {kind!r} is not one of {', '.join(TRANSFORMS)}")
    try:
        transform = TRANSFORMS[kind](**sizes)
        transform.load_state_dict(load_file(file))
    except (OSError, LookupError, RuntimeError, SafetensorError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from error
    return transform
