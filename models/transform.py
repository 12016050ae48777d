"""What may stand between pooling and the unit vector: a map fitted to vectors, kept with the encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from models.bundle import TRANSFORM
from models.dense import Layers
from models.flow import Flow


class Affine(nn.Module):
    """(x - mean) @ matrix: (N, D) to (N, D')."""

    kind: ClassVar = "affine"
    mean: Tensor
    matrix: Tensor

    def __init__(self, *, dim: int, out: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("matrix", torch.zeros(dim, out))

    @classmethod
    def of(cls, mean: Tensor, matrix: Tensor) -> Self:
        """The map of a mean (D,) and a matrix (D, D')."""
        made = cls(dim=matrix.shape[0], out=matrix.shape[1]).to(matrix)
        made.load_state_dict({"mean": mean, "matrix": matrix})
        return made

    @property
    def dim(self) -> int:
        """D of what goes in."""
        return self.matrix.shape[0]

    @property
    def out(self) -> int:
        """D' of what comes out."""
        return self.matrix.shape[1]

    @property
    def sizes(self) -> dict[str, int]:
        """What the constructor takes."""
        return {"dim": self.dim, "out": self.out}

    def forward(self, pooled: Tensor) -> Tensor:
        """See the class."""
        return (pooled - self.mean) @ self.matrix

    def bias(self) -> Tensor:
        """The b (D',) of x @ matrix + b, the same map in the form others write it."""
        return -(self.mean.double() @ self.matrix.double()).to(self.matrix.dtype)


Transform = Affine | Flow | Layers

TRANSFORMS: dict[str, Callable[..., Transform]] = {"affine": Affine, "flow": Flow, "dense": Layers}
"""By what a manifest calls them: each is built from its sizes."""


def described(transform: Transform | None) -> dict[str, Any] | None:
    """What the manifest says of a transform: its kind and sizes."""
    return None if transform is None else {"kind": transform.kind, **transform.sizes}


def save(transform: Transform, folder: Path) -> None:
    """Writes the weights into the folder of an encoder."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in transform.state_dict().items()}
    save_file(weights, folder / TRANSFORM)


def load(folder: Path, description: Mapping[str, Any]) -> Transform:
    """The transform whose weights are in `folder`, of the kind and sizes that `described` gave.

    Raises:
        ValueError: the kind is unknown, or weights and sizes do not fit; the message names the file.
    """
    file = folder / TRANSFORM
    kind, sizes = description.get("kind"), {key: size for key, size in description.items() if key != "kind"}
    if kind not in TRANSFORMS:
        raise ValueError(f"{folder}: transform {kind!r} is none of {', '.join(TRANSFORMS)}")
    try:
        transform = TRANSFORMS[kind](**sizes)
        transform.load_state_dict(load_file(file))
    except (OSError, LookupError, RuntimeError, SafetensorError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from error
    return transform
