"""Gaussian noise, and negatives that are nothing else: directions drawn evenly from the whole space."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from models.precision import full_precision
from training.objectives.contrastive import cosine_logits

MOST = 1000
"""Draws beside each sentence: far more than is of use, and no more than memory may hold."""


def check_ratio(ratio: float) -> None:
    """Raises `ValueError` if so many draws a sentence can't be taken."""
    if not 0 <= ratio <= MOST:
        raise ValueError(f"noise_ratio {ratio} is not from 0 to {MOST}")


def gaussian(*shape: int, like: Tensor, rng: torch.Generator) -> Tensor:
    """N(0, 1) on the device of `like`, in its type if that is float32 or wider; the same numbers in every type."""
    return torch.randn(shape, generator=rng, device=like.device).to(full_precision(like).dtype)


def gaussian_negatives(anchors: Tensor, ratio: float, rng: torch.Generator) -> Tensor:
    """int(ratio * N) draws of N(0, 1), (M, D), shared by the N anchors (N, D).

    There is no scale to choose: the loss sees them through cosines, which only their directions decide.
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
    """`noise` (M, D) after steps of n + rate * g / |g|, g the gradient at n of the non-uniformity loss; a constant.

    DCLR, equations 2 to 4. `sentences` (K, D) stand in that loss's denominator beside the noise, none in the paper.
    """
    with torch.no_grad(), torch.autocast(noise.device.type, enabled=False):
        for _ in range(steps):
            candidates = noise if sentences is None else torch.cat([noise, sentences])
            log_shares = cosine_logits(anchors, candidates, temperature).log_softmax(dim=1)[:, : len(noise)]
            noise = noise + rate * _steepest(noise, full_precision(anchors), log_shares)
    return noise


def _steepest(noise: Tensor, anchors: Tensor, log_shares: Tensor) -> Tensor:
    """The unit vectors (M, D) along the gradient of -log exp s(h_i, h'_i) / sum_m exp s(h_i, n_m), summed over i.

    It is the sum over i of p_im (h_i - cos(h_i, n_m) n_m) / tau |n_m|, with h_i and n_m of unit length and p_im the
    share (N, M) of n_m in row i. A column of shares may be scaled as one likes; a softmax of it can't underflow.
    """
    unit_anchors, unit_noise = F.normalize(anchors, dim=1), F.normalize(noise, dim=1)
    shares = log_shares.softmax(dim=0)
    along = (shares * (unit_anchors @ unit_noise.T)).sum(dim=0)[:, None] * unit_noise
    return F.normalize(shares.T @ unit_anchors - along, dim=1)
