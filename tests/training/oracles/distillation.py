"""Distillation: the polar factor by the inverse root of C^T C, restricted to the directions that C spans."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.training.oracles.arrays import Array, ViewArrays, Weights, cosine


def oracle(views: ViewArrays, params: Any, weights: Weights, rng: torch.Generator) -> dict[str, float]:
    assert views.teacher is not None and views.start is not None
    (own,), start, teacher = views.noisy, views.start, views.teacher
    pairs = zip(start, teacher, strict=True)
    between = np.sum([np.outer(s / np.linalg.norm(s), t / np.linalg.norm(t)) for s, t in pairs], axis=0)  # (D, D')
    squares, axes = np.linalg.eigh(between.T @ between)
    kept = squares > 1e-10 * squares.max()
    isometry = between @ (axes[:, kept] / np.sqrt(squares[kept])) @ axes[:, kept].T
    if params.aligned == 0:
        isometry = np.eye(own.shape[1])
    taught = [1 - cosine(z @ isometry, t) for z, t in zip(own, teacher, strict=True)]
    stayed = [1 - cosine(z, s) for z, s in zip(own, start, strict=True)]
    terms = {"teacher": params.share * float(np.mean(taught)), "start": (1 - params.share) * float(np.mean(stayed))}
    if params.share == 1:
        del terms["start"]
    if params.similarity:
        terms["similarity"] = params.similarity * squared_differences(own, teacher)
    return terms


def squared_differences(own: Array, target: Array) -> float:
    """Return the mean squared difference between the cosines of all pairs, one at a time."""
    squares = [
        (cosine(a, b) - cosine(s, t)) ** 2
        for a, s in zip(own, target, strict=True)
        for b, t in zip(own, target, strict=True)
    ]
    return float(np.mean(squares))
