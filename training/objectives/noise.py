"""Gaussian noise, and negatives made of noise: directions drawn uniformly from the whole space."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from models.precision import full_precision
from training.objectives.contrastive import cosine_logits

MOST = 1000
"""Maximum noise draws per sentence. It is far more than is useful and bounds memory."""


def check_ratio(ratio: float) -> None:
    """Check the number of noise draws per sentence.

    Raises:
        ValueError: the ratio is not from 0 to `MOST`.
    """
    if not 0 <= ratio <= MOST:
        raise ValueError(f"noise_ratio {ratio} is not from 0 to {MOST}")


def gaussian(*shape: int, like: Tensor, rng: torch.Generator) -> Tensor:
    """Draw from N(0, 1) on the device of `like`, in its type if that is float32 or wider.

    The numbers are the same in every type.
    """
    return torch.randn(shape, generator=rng, device=like.device).to(full_precision(like).dtype)


def gaussian_negatives(anchors: Tensor, ratio: float, rng: torch.Generator) -> Tensor:
    """Draw int(ratio * N) negatives from N(0, 1), (M, D), shared by the N anchors (N, D).

    The noise needs no scale: the loss sees only cosines, which depend on directions alone.
    """
    return gaussian(int(ratio * len(anchors)), anchors.shape[1], like=anchors, rng=rng)


def ascended(
    noise: Tensor,
    anchors: Tensor,
    *,
    steps: int,
    rate: float,
    temperature: float,
    sentences: Tensor | None = None,
) -> Tensor:
    """Move `noise` (M, D) by steps n + rate * g / |g|, where g is the gradient of the non-uniformity loss at n.

    The result has no gradient. Source: DCLR, equations 2 to 4. The optional `sentences` (K, D) join the noise in that
    loss's denominator; the paper has none.
    """
    with torch.no_grad(), torch.autocast(noise.device.type, enabled=False):
        for _ in range(steps):
            candidates = noise if sentences is None else torch.cat([noise, sentences])
            log_shares = cosine_logits(anchors, candidates, temperature).log_softmax(dim=1)[:, : len(noise)]
            noise = noise + rate * _steepest(noise, full_precision(anchors), log_shares)
    return noise


def _steepest(noise: Tensor, anchors: Tensor, log_shares: Tensor) -> Tensor:
    """Return unit vectors (M, D) along the gradient of -log exp s(h_i, h'_i) / sum_m exp s(h_i, n_m), summed over i.

    The gradient is the sum over i of p_im (h_i - cos(h_i, n_m) n_m) / tau |n_m|. Here h_i and n_m have unit length, and
    p_im (N, M) is the share of n_m in row i. Scaling a column of shares does not change the direction. A softmax over
    the column cannot underflow.
    """
    unit_anchors, unit_noise = F.normalize(anchors, dim=1), F.normalize(noise, dim=1)
    shares = log_shares.softmax(dim=0)
    along = (shares * (unit_anchors @ unit_noise.T)).sum(dim=0)[:, None] * unit_noise
    return F.normalize(shares.T @ unit_anchors - along, dim=1)
