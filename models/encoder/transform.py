"""Transforms that are applied to pooled vectors before normalisation, and stored with the encoder.

`Affine` and `Flow` are fitted to data. `Layers` come from the modules of a sentence-transformers encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from models.bundle.bundle import TRANSFORM
from models.bundle.sources import Module, SourceError, read_object, weight_files


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


# Glow for vectors: the normalising flow of BERT-flow, from pooled vectors to N(0, I). Kingma and Dhariwal, "Glow:
# Generative Flow with Invertible 1x1 Convolutions" (NeurIPS 2018), arXiv:1807.03039, configured as by Li et al., "On
# the Sentence Embeddings from Pre-trained Language Models" (EMNLP 2020), arXiv:2011.05864.

LOG_SCALE_FACTOR = 3.0
"""Factor of learnt log-scales, as in Glow's published code. It makes log-scales change three times as fast."""


class ActNorm(nn.Module):
    """A layer that shifts and scales each component. It maps x (N, D) to (x + b) exp(3 s), with learnt b and s (D,)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width))
        self.log_scale = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.shift) * (LOG_SCALE_FACTOR * self.log_scale).exp()

    def log_det(self) -> Tensor:
        """Return the log of the Jacobian's determinant, which does not depend on the input."""
        return LOG_SCALE_FACTOR * self.log_scale.sum()


class AdditiveCoupling(nn.Module):
    """A layer that shifts the second half of the components by a function of the first half. It preserves volume."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(
            *(nn.Linear(width // 2, hidden, bias=False), ActNorm(hidden), nn.ReLU()),
            *(nn.Linear(hidden, hidden, bias=False), ActNorm(hidden), nn.ReLU()),
        )
        self.shift = nn.Linear(hidden, width // 2)

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first, second + self.shift(self.hidden(first))], dim=-1)


class Step(nn.Module):
    """A step of the normalising flow: actnorm, reversed components, additive coupling. It maps (N, D) to (N, D)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.actnorm = ActNorm(width)
        self.coupling = AdditiveCoupling(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        reordered: Tensor = self.coupling(self.actnorm(x).flip(-1))
        return reordered


class Flow(nn.Module):
    """Bijection from pooled vectors (N, D) to latents (N, D).

    A vector is treated as an image of one pixel, so Glow's squeeze has no effect. After each level except the last, the
    second half of the components is output, and the first half is the input of the next level. The latents of all
    levels are concatenated.
    """

    kind: ClassVar = "flow"

    def __init__(self, *, dim: int, levels: int, depth: int, hidden: int) -> None:
        super().__init__()
        if dim % 2**levels:
            raise ValueError(f"{dim} dimensions can't be halved {levels} times, once in each of {levels} levels")
        self.sizes = {"dim": dim, "levels": levels, "depth": depth, "hidden": hidden}
        self.dim = self.out = dim
        self.levels = nn.ModuleList(
            nn.ModuleList(Step(dim >> level, hidden) for _ in range(depth)) for level in range(levels)
        )

    def forward(self, pooled: Tensor) -> Tensor:
        leaving: list[Tensor] = []
        x = pooled
        for level in range(len(self.levels)):
            if level:
                x, half = x.chunk(2, dim=-1)
                leaving.append(half)
            for step in self.steps(level):
                x = step(x)
        return torch.cat([*leaving, x], dim=-1)

    def log_det(self) -> Tensor:
        """Return the log of the Jacobian's determinant, which does not depend on the input."""
        steps = [step for level in range(len(self.levels)) for step in self.steps(level)]
        return torch.stack([step.actnorm.log_det() for step in steps]).sum()

    def steps(self, level: int) -> list[Step]:
        """Return the steps of a level, in their order."""
        return list(cast("Iterable[Step]", self.levels[level]))


# Layers of sentence-transformers after the pooling: Dense, Normalize, and truncation by `truncate_dim`.

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
    """A sequence of `Dense`, `Normalize` and `Truncate` layers: (N, D) to (N, D')."""

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
        """Read the layers in `modules`, which follow a pooling of dimension `dim`.

        If `truncate` is less than the dimension of the vectors, a last layer keeps only the first `truncate`
        components. Return None if there are no layers, or if the layers don't change the direction of vectors.

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
    """Return the description of the Dense module in `folder`, for the manifest.

    `width` is the dimension of the vectors that the module gets.

    Raises:
        SourceError: the module is not supported, or its input dimension is not `width`.
    """
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


Transform = Affine | Flow | Layers

TRANSFORMS: dict[str, Callable[..., Transform]] = {"affine": Affine, "flow": Flow, "dense": Layers}
"""Transforms by their names in a manifest. The sizes in the manifest are the arguments of the constructor."""


def described(transform: Transform | None) -> dict[str, Any] | None:
    """Return the kind and sizes of a transform for the manifest, or None if `transform` is None."""
    return None if transform is None else {"kind": transform.kind, **transform.sizes}


def save(transform: Transform, folder: Path) -> None:
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in transform.state_dict().items()}
    save_file(weights, folder / TRANSFORM)


def load(folder: Path, description: Mapping[str, Any]) -> Transform:
    """Load the transform whose weights are in `folder`. `description` is a result of `described`.

    Raises:
        ValueError: the kind is unknown, the weights can't be read, or weights and sizes don't match.
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
