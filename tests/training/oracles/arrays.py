"""What the oracles see and share: float64 arrays, a vector at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from training.objectives.base import Views

Array = NDArray[np.float64]
Weights = Mapping[str, Array]


@dataclass(frozen=True)
class ViewArrays:
    """`Views` in float64."""

    noisy: Array
    clean: Array | None
    teacher: Array | None
    start: Array | None

    @classmethod
    def of(cls, views: Views) -> ViewArrays:
        others = (views.clean, views.teacher, views.start)
        return cls(views.noisy.detach().double().numpy(), *(None if x is None else _array(x) for x in others))


def _array(x: torch.Tensor) -> Array:
    return x.detach().double().numpy()


class Oracle(Protocol):
    """The terms of an objective from its equation, as slow as it likes.

    `rng` stands where the objective's own stood: whoever draws the same things in the same order has the same draws.
    """

    def __call__(self, views: ViewArrays, params: Any, weights: Weights, rng: torch.Generator) -> dict[str, float]: ...


def cosine(a: Array, b: Array) -> float:
    return float(a @ b) / max(math.sqrt(a @ a), 1e-8) / max(math.sqrt(b @ b), 1e-8)


def head(x: Array, weights: Weights) -> Array:
    """Linear and tanh of one vector; the vector itself where the objective has no head."""
    return np.tanh(weights["head.0.weight"] @ x + weights["head.0.bias"]) if "head.0.weight" in weights else x


def gaussian(rows: int, dim: int, rng: torch.Generator) -> Array:
    """N(0, 1), drawn as float32."""
    return torch.randn(rows, dim, generator=rng).double().numpy()
