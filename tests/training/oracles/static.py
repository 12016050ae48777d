"""Static distillation: cosines to the targets, and differences of the cosines of all pairs, one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.training.oracles.arrays import ViewArrays, Weights, cosine


def oracle(views: ViewArrays, params: Any, weights: Weights, rng: torch.Generator) -> dict[str, float]:
    assert views.start is not None
    (own,), target = views.noisy, views.start
    apart = [1 - cosine(z, s) for z, s in zip(own, target, strict=True)]
    squares = [
        (cosine(a, b) - cosine(s, t)) ** 2
        for a, s in zip(own, target, strict=True)
        for b, t in zip(own, target, strict=True)
    ]
    terms = {"cosine": float(np.mean(apart)), "similarity": params.similarity * float(np.mean(squares))}
    return terms if params.similarity else {"cosine": terms["cosine"]}
