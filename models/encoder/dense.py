"""Layers of sentence-transformers after the pooling: Dense, Normalize, and truncation by `truncate_dim`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from models.bundle.sources import Module, SourceError, read_object, weight_files

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "Identity": nn.Identity,
    "Tanh": nn.Tanh,
    "ReLU": nn.ReLU,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Sigmoid": nn.Sigmoid,
}
NEUTRAL = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding", "use_residual": False}
"""Settings of a module that have no effect if they have these values or None."""


class Dense(nn.Module):
    """A linear map with an activation function: (N, D) to (N, D')."""

    def __init__(self, *, dim: int, out: int, bias: bool, activation: str) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, out, bias=bias)
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.activation(self.linear(x))
        return activated


class Normalize(nn.Module):
    """A layer that scales vectors to unit length."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


class Truncate(nn.Module):
    """A layer that keeps only the first components of vectors: (N, D) to (N, out)."""

    def __init__(self, *, out: int) -> None:
        super().__init__()
        self.out = out

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : self.out]


LAYERS: dict[str, type[nn.Module]] = {"dense": Dense, "normalize": Normalize, "truncate": Truncate}
"""Layer classes by their names in a manifest.

The other fields of a layer's description are arguments of the constructor.
"""


class Layers(nn.Module):
    """A sequence of layers: (N, D) to (N, D')."""

    kind: ClassVar = "dense"

    def __init__(self, *, dim: int, layers: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.sizes = {"dim": dim, "layers": [dict(layer) for layer in layers]}
        self.dim = dim
        self.out: int = next((layer["out"] for layer in reversed(layers) if "out" in layer), dim)
        self.layers = nn.Sequential(
            *(
                LAYERS[layer["kind"]](**{key: value for key, value in layer.items() if key != "kind"})
                for layer in layers
            )
        )

    def forward(self, pooled: Tensor) -> Tensor:
        vectors: Tensor = self.layers(pooled)
        return vectors

    @classmethod
    def read(cls, modules: Sequence[Module], *, dim: int, truncate: int | None) -> Self | None:
        """Read the layers after a pooling of dimension `dim`.

        Return None if they don't change the direction of vectors.

        Raises:
            SourceError: a module is not supported, or does not fit the previous one; the message names its file.
        """
        kept = list(modules)
        while kept and kept[-1].kind == "Normalize":  # Skipped, because `UnitVector` does the final normalisation.
            kept.pop()
        described: list[dict[str, Any]] = []
        weights: list[dict[str, Tensor]] = []
        width = dim
        for module in kept:
            if module.kind == "Dense":
                described.append(_dense(module.folder, width))
                weights.append(_weights(module.folder))
                width = described[-1]["out"]
            else:
                file = module.folder / "config.json"
                _check_neutral(file, read_object(file))
                described.append({"kind": "normalize"})
        if truncate is not None and truncate < width:
            described.append({"kind": "truncate", "out": truncate})
        if not described:
            return None
        made = cls(dim=dim, layers=described)
        for layer, tensors in zip((each for each in made.layers if isinstance(each, Dense)), weights, strict=True):
            layer.load_state_dict(tensors)
        return made


def _dense(folder: Path, width: int) -> dict[str, Any]:
    """Return the manifest's description of a Dense module whose input has the dimension `width`."""
    file = folder / "config.json"
    said = read_object(file, required=True)
    _check_neutral(file, said)
    activation = said.get("activation_function", "torch.nn.modules.activation.Tanh")
    package, _, name = str(activation).rpartition(".")
    if not package.startswith("torch.nn") or name not in ACTIVATIONS:
        raise SourceError(f"{file}: activation_function {activation} is not one of {', '.join(ACTIVATIONS)}")
    layer = {"kind": "dense", "dim": said.get("in_features"), "out": said.get("out_features")}
    layer |= {"bias": said.get("bias", True), "activation": name}
    if layer["dim"] != width:
        raise SourceError(f"{file}: in_features is {layer['dim']}, but the module before has {width} dimensions")
    return layer


def _weights(folder: Path) -> dict[str, Tensor]:
    files = weight_files(folder)
    if not files:
        raise SourceError(f"{folder}: contains neither model.safetensors nor pytorch_model.bin")
    if files[0].suffix == ".safetensors":
        return load_file(files[0])
    weights: dict[str, Tensor] = torch.load(files[0], weights_only=True)
    return weights


def _check_neutral(file: Path, said: Mapping[str, Any]) -> None:
    for name, value in NEUTRAL.items():
        if said.get(name) not in (None, value):
            raise SourceError(f"{file}: {name} {said[name]!r} is not supported")
