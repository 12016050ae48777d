"""WhitenedCSE: equations 2 to 6 by singular values, 7, the interpretations of 8, and 13."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tests.training.oracles.arrays import Array, ViewArrays, Weights, cosine, head


def oracle(views: ViewArrays, params: Any, weights: Weights, rng: torch.Generator) -> dict[str, float]:
    noisy = np.repeat(views.noisy, params.views, axis=0) if params.single_feature else views.noisy
    anchors, *positives = ([head(x, weights) for x in view] for view in whitened(noisy, params, weights, rng))
    losses = []
    for i, anchor in enumerate(anchors):
        shares, odds = [], []
        for view in positives:
            exponentials = [math.exp(cosine(anchor, candidate) / params.temperature) for candidate in view]
            shares.append(exponentials[i] / sum(exponentials))
            odds.append(1 / exponentials[i] / sum(exponentials))
        losses.append(multi_positive(shares, odds, params))
    return {"info_nce": float(np.mean(losses))}


def multi_positive(shares: list[float], odds: list[float], params: Any) -> float:
    """Return the loss of one anchor, from exp(s) / Z and exp(-s) / Z of each positive."""
    weights: Sequence[float] = params.positive_weights or [1.0] * len(shares)
    match params.multi_positive:
        case "L1":
            return -sum(w * math.log(share) for w, share in zip(weights, shares, strict=True))
        case "L2-eq8":
            return -math.log(sum(w * odd for w, odd in zip(weights, odds, strict=True)))
        case "L2-no-minus":
            return -math.log(sum(w * share for w, share in zip(weights, shares, strict=True)))
        case _:
            return math.log(sum(w / share for w, share in zip(weights, shares, strict=True)))


def whitened(noisy: Array, params: Any, weights: Weights, rng: torch.Generator) -> Array:
    match params.whitening:
        case "none":
            return noisy
        case "pca" | "zca":
            return whitened_by_moving_statistics(noisy, params, weights)
    dim = noisy.shape[2]
    orders = np.arange(dim)[None].repeat(len(noisy), axis=0)
    if params.whitening == "shuffled-group":
        orders = torch.rand(len(noisy), dim, generator=rng).argsort(dim=1).numpy()
    count, n = noisy.shape[:2]
    rows = [(v, i) for v in range(count) for i in range(n)]
    if params.chunking == "reference":
        rows = [(v, i) for i in range(n) for v in range(count)]
    out = np.empty_like(noisy)
    for part, order in enumerate(orders):
        members = rows[part * n : (part + 1) * n]
        x = np.array([noisy[v, i] for v, i in members])
        white = np.empty_like(x)
        for group in order.reshape(params.groups, -1):
            white[:, group] = zca(x[:, group], params.eps)
        for (v, i), row in zip(members, white, strict=True):
            out[v, i] = row
    return out


def zca(x: Array, eps: float) -> Array:
    centred = x - x.mean(axis=0)
    _, singular, axes = np.linalg.svd(centred, full_matrices=False)
    scales = np.diag((singular**2 / len(x) + eps) ** -0.5)
    return np.asarray(centred @ axes.T @ scales @ axes)


def whitened_by_moving_statistics(noisy: Array, params: Any, weights: Weights) -> Array:
    rows, beta = noisy.reshape(-1, noisy.shape[2]), params.momentum
    mean = beta * weights["whitening.mean"] + (1 - beta) * rows.mean(axis=0)
    covariance = beta * weights["whitening.covariance"] + (1 - beta) * np.cov(rows.T)
    eigenvalues, axes = np.linalg.eig(covariance)
    axes = axes[:, np.argsort(-eigenvalues)]
    scales = np.diag((np.sort(eigenvalues)[::-1] + params.eps) ** -0.5)
    if params.whitening == "zca":
        return np.asarray((noisy - mean) @ axes @ scales @ axes.T)
    signs = np.array([math.copysign(1, axis[np.argmax(np.abs(axis))]) for axis in axes.T])
    return np.asarray((noisy - mean) @ (axes * signs) @ scales)
