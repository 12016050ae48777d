"""DCLR: equations 2 to 6, the published code's loss, and our definition of distillation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tests.training.oracles.arrays import Array, ViewArrays, Weights, cosine, gaussian, head


def oracle(views: ViewArrays, params: Any, weights: Weights, rng: torch.Generator) -> dict[str, float]:
    anchors, positives = ([head(x, weights) for x in view] for view in views.noisy)
    noise = gaussian(int(params.noise_ratio * len(anchors)), len(anchors[0]), rng)
    for _ in range(params.ascent_steps):
        noise = step(noise, anchors, positives, params)
    if params.judge == "teacher":
        judged, compared = views.teacher, views.teacher
    else:
        judged, compared = np.array(anchors), np.array(positives)

    def alpha(i: int, c: int) -> float:
        """Return 1 for a positive, and for a negative that the judge keeps."""
        if c == i or params.weighting == "none":
            return 1.0
        assert judged is not None and compared is not None
        other = compared[c] if c < len(anchors) else noise[c - len(anchors)]
        return 0.0 if len(other) == len(judged[i]) and cosine(judged[i], other) >= params.threshold else 1.0

    candidates = [*positives, *noise]
    losses = []
    for i, anchor in enumerate(anchors):
        logits = [cosine(anchor, candidate) / params.temperature for candidate in candidates]
        row = [alpha(i, c) for c in range(len(candidates))]
        if params.weighting == "reference":
            losses.append(cross_entropies(i, [a * s for a, s in zip(row, logits, strict=True)]))
        else:
            removed = sum(a * math.exp(s) for a, s in zip(row, logits, strict=True))
            losses.append(-math.log(math.exp(logits[i]) / removed))
    terms = {"binary_cross_entropy" if params.weighting == "reference" else "info_nce": float(np.mean(losses))}
    if params.distillation:
        assert views.teacher is not None
        terms["distillation"] = params.distillation * divergence(views.teacher, anchors, positives, params.temperature)
    return terms


def step(noise: Array, anchors: Sequence[Array], positives: Sequence[Array], params: Any) -> Array:
    """Return n + beta * g / |g|, with g by central differences of the non-uniformity loss."""

    def non_uniformity(noise: Array) -> float:
        candidates = [*noise, *(positives if params.ascent_loss == "reference" else [])]
        similar = np.exp(units(anchors) @ units(candidates).T / params.ascent_temperature)
        positive = np.exp((units(anchors) * units(positives)).sum(axis=1) / params.ascent_temperature)
        return float(-np.log(positive / similar.sum(axis=1)).mean())

    moved = noise.copy()
    for m in range(len(noise)):
        gradient = np.zeros_like(noise[m])
        for d in range(len(gradient)):
            nudge = np.zeros_like(noise)
            nudge[m, d] = 1e-5
            gradient[d] = non_uniformity(noise + nudge) - non_uniformity(noise - nudge)
        moved[m] += params.ascent_rate * gradient / np.linalg.norm(gradient)
    return moved


def units(vectors: Sequence[Array] | Array) -> Array:
    return np.array([vector / np.linalg.norm(vector) for vector in vectors])


def cross_entropies(i: int, logits: Sequence[float]) -> float:
    """Return the mean over a row of -(y log p + (1 - y) log(1 - p))."""
    exponentials = [math.exp(s) for s in logits]
    shares = [e / sum(exponentials) for e in exponentials]
    return -sum(math.log(p) if c == i else math.log(1 - p) for c, p in enumerate(shares)) / len(shares)


def divergence(teacher: Array, anchors: Sequence[Array], positives: Sequence[Array], temperature: float) -> float:
    """Return the KL divergence of the student's rows from the teacher's, each without the sentence itself."""
    total = 0.0
    for i, anchor in enumerate(anchors):
        others = [j for j in range(len(teacher)) if j != i]
        targets = np.exp([cosine(teacher[i], teacher[j]) / temperature for j in others])
        student = np.exp([cosine(anchor, positives[j]) / temperature for j in others])
        targets, student = targets / targets.sum(), student / student.sum()
        total += float((targets * np.log(targets / student)).sum())
    return total / len(anchors)
