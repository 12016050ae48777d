"""Gaussian noise, and negatives made of noise, whose directions are uniformly distributed on the sphere."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from models.encoder.encoder import full_precision
from training.objectives.contrastive import cosine_logits

MAX_DRAWS = 1000
"""Maximum number of noise negatives per sentence. The limit bounds memory and is far above useful values."""


def check_ratio(ratio: float) -> None:
    """Check the ratio of noise negatives to sentences.

    Raises:
        ValueError: the ratio is not from 0 to `MAX_DRAWS`.
    """
    if not 0 <= ratio <= MAX_DRAWS:
        raise ValueError(f"noise_ratio {ratio} is not from 0 to {MAX_DRAWS}")


def gaussian(*shape: int, like: Tensor, rng: torch.Generator) -> Tensor:
    """Draw from N(0, 1) on the device of `like`. The result has the type of `like`, but at least float32.

    The numbers are drawn in float32, so they are the same in every type.
    """
    return torch.randn(shape, generator=rng, device=like.device).to(full_precision(like).dtype)


def gaussian_negatives(anchors: Tensor, ratio: float, rng: torch.Generator) -> Tensor:
    """Draw M = int(ratio * N) negatives (M, D) from the standard normal distribution, for all N anchors (N, D).

    The noise needs no scale, because the loss depends only on cosines.
    """
    return gaussian(int(ratio * len(anchors)), anchors.shape[1], like=anchors, rng=rng)


def ascend(
    noise: Tensor,
    anchors: Tensor,
    *,
    steps: int,
    rate: float,
    temperature: float,
    sentences: Tensor | None = None,
) -> Tensor:
    """Move `noise` (M, D) along the gradient g of the non-uniformity loss, by steps n + rate * g / |g|.

    The result has no gradient. Source: DCLR, equations 2 to 4. If given, `sentences` (K, D) are added to the
    denominator of the non-uniformity loss, unlike in the paper.
    """
    with torch.no_grad(), torch.autocast(noise.device.type, enabled=False):
        for _ in range(steps):
            candidates = noise if sentences is None else torch.cat([noise, sentences])
            log_shares = cosine_logits(anchors, candidates, temperature).log_softmax(dim=1)[:, : len(noise)]
            noise = noise + rate * _steepest(noise, full_precision(anchors), log_shares)
    return noise


def _steepest(noise: Tensor, anchors: Tensor, log_shares: Tensor) -> Tensor:
    """Return unit vectors (M, D) along the gradient of the non-uniformity loss with respect to the noise (M, D).

    The loss is the sum over i of -log exp s(h_i, h'_i) / sum_m exp s(h_i, n_m). Its gradient is the sum over i of p_im
    (h_i - cos(h_i, n_m) n_m) / tau |n_m|, with h_i and n_m scaled to unit length. p_im (N, M) is the share of n_m in
    row i. The shares of a column are scaled by a softmax over the column, which does not change the direction and
    cannot underflow.
    """
    unit_anchors, unit_noise = F.normalize(anchors, dim=1), F.normalize(noise, dim=1)
    shares = log_shares.softmax(dim=0)
    along = (shares * (unit_anchors @ unit_noise.T)).sum(dim=0)[:, None] * unit_noise
    return F.normalize(shares.T @ unit_anchors - along, dim=1)
