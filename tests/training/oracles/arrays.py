"""Arrays and helpers of the oracles: float64, one vector at a time."""

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
    """Slow computation of an objective's terms from its equation.

    `rng` has the state in which the objective used it, so the same draws in the same order give the same numbers.
    """

    def __call__(self, views: ViewArrays, params: Any, weights: Weights, rng: torch.Generator) -> dict[str, float]: ...


def cosine(a: Array, b: Array) -> float:
    return float(a @ b) / max(math.sqrt(a @ a), 1e-8) / max(math.sqrt(b @ b), 1e-8)


def head(x: Array, weights: Weights) -> Array:
    """Apply a linear layer and tanh to one vector, or return the vector if the objective has no head."""
    return np.tanh(weights["head.0.weight"] @ x + weights["head.0.bias"]) if "head.0.weight" in weights else x


def gaussian(rows: int, dim: int, rng: torch.Generator) -> Array:
    """Draw from N(0, 1) in float32."""
    return torch.randn(rows, dim, generator=rng).double().numpy()
