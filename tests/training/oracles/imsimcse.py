"""ImSimCSE: equations 3 to 6 of SimCSE++, and the noise of its table 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tests.training.oracles.arrays import Array, ViewArrays, Weights, cosine, gaussian, head


def oracle(views: ViewArrays, params: Any, weights: Weights, rng: torch.Generator) -> dict[str, float]:
    noisy = np.array([[head(x, weights) for x in view] for view in views.noisy])
    clean = None if views.clean is None else np.array([[head(x, weights) for x in view] for view in views.clean])
    terms = {}
    if params.contrast_weight:
        positives, negatives = (sides(kind, noisy, clean, params, rng) for kind in (params.positives, params.negatives))
        terms["info_nce"] = params.contrast_weight * info_nce(positives, negatives, params)
    if params.dcl_weight:
        terms["dcl"] = params.dcl_weight * dimension_contrast(noisy[0], noisy[1], params)
    if params.barlow_weight:
        artificial = gaussian(params.artificial_rows, noisy.shape[2], rng)
        z1, z2 = (np.concatenate([view, artificial]) for view in noisy[:2])
        terms["barlow_twins"] = params.barlow_weight * barlow_twins(z1, z2, params)
    return terms


def sides(kind: str, noisy: Array, clean: Array | None, params: Any, rng: torch.Generator) -> tuple[Array, Array]:
    match kind:
        case "dropout":
            return noisy[0], noisy[1]
        case "off-dropout":
            assert clean is not None
            return clean[0], clean[-1]
        case "gaussian-noise":
            noise = gaussian(noisy[:2].size // noisy.shape[2], noisy.shape[2], rng).reshape(noisy[:2].shape)
            return noisy[0] + params.noise_variance**0.5 * noise[0], noisy[1] + params.noise_variance**0.5 * noise[1]
        case "mean-sampling":
            return noisy[::2].mean(axis=0), noisy[1::2].mean(axis=0)
        case _:
            return noisy.mean(axis=0), noisy.mean(axis=0)


def info_nce(positives: Sequence[Array], negatives: Sequence[Array], params: Any) -> float:
    losses = []
    for i, (a, b) in enumerate(zip(*positives, strict=True)):
        similar = cosine(a, b) / params.temperature * (params.m if params.m_on == "positive-logit" else 1)
        others = [cosine(negatives[0][i], c) / params.temperature for j, c in enumerate(negatives[1]) if j != i]
        against = sum(map(math.exp, others)) * (params.m if params.m_on == "negatives" else 1)
        losses.append(-math.log(math.exp(similar) / (math.exp(similar) + against)))
    return float(np.mean(losses))


def dimension_contrast(z1: Array, z2: Array, params: Any) -> float:
    printed = params.dcl_form == "printed"
    columns = [[(c - c.mean()) / math.sqrt(c.var(ddof=1 if printed else 0) + 1e-5) for c in z.T] for z in (z1, z2)]
    losses = []
    for c, column in enumerate(columns[0]):
        logits = [column @ other / params.dcl_temperature / (1 if printed else len(z1)) for other in columns[1]]
        losses.append(math.log(sum(math.exp(s - logits[c]) for s in logits)))
    return float(np.sum(losses) if printed else np.mean(losses))


def barlow_twins(z1: Array, z2: Array, params: Any) -> float:
    total = 0.0
    for c, a in enumerate(z1.T):
        for d, b in enumerate(z2.T):
            correlation = centred_correlation(a, b) if params.barlow_centred else cosine(a, b)
            total += (1 - correlation) ** 2 if c == d else params.barlow_off_diagonal * correlation**2
    return total


def centred_correlation(a: Array, b: Array) -> float:
    covariance = ((a - a.mean()) * (b - b.mean())).mean()
    return float(covariance / math.sqrt((a.var() + 1e-5) * (b.var() + 1e-5)))
