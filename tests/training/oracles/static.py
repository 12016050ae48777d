"""Static distillation: cosines to the targets, and differences of the cosines of all pairs, one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.training.oracles.arrays import ViewArrays, Weights, cosine
from tests.training.oracles.distillation import squared_differences


def oracle(views: ViewArrays, params: Any, weights: Weights, rng: torch.Generator) -> dict[str, float]:
    assert views.start is not None
    (own,), target = views.noisy, views.start
    apart = [1 - cosine(z, s) for z, s in zip(own, target, strict=True)]
    terms = {"cosine": float(np.mean(apart)), "similarity": params.similarity * squared_differences(own, target)}
    return terms if params.similarity else {"cosine": terms["cosine"]}
