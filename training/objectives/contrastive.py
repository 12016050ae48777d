"""Contrastive losses between sentences and between dimensions, the head before them, and negatives made of noise.

The losses are computed in float32 or wider under any autocast.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.encoder.encoder import full_precision

EPS = 1e-8
"""Lower bound of the norm that a vector is divided by, as in PyTorch's `cosine_similarity`."""


def cosine_logits(anchors: Tensor, candidates: Tensor, temperature: float) -> Tensor:
    """Compute cos(a_i, c_j) / tau: (N, D) and (M, D) to (N, M)."""
    with torch.autocast(anchors.device.type, enabled=False):
        unit = [F.normalize(full_precision(x), dim=1, eps=EPS) for x in (anchors, candidates)]
        return unit[0] @ unit[1].T / temperature


def similarity_distance(own: Tensor, target: Tensor) -> Tensor:
    """Compute the mean of (cos(z_i, z_j) - cos(t_i, t_j))^2 over all pairs of a batch.

    Shapes: `own` z (N, D) and `target` t (N, D') to a scalar.
    """
    return (cosine_logits(own, own, 1.0) - cosine_logits(target, target, 1.0)).square().mean()


def info_nce(logits: Tensor) -> Tensor:
    """Compute InfoNCE: the mean over N rows of -log softmax at the positive.

    The positives are on the diagonal of `logits` (N, M >= N). Source: SimCSE (Gao et al., EMNLP 2021), equation 1.
    """
    with torch.autocast(logits.device.type, enabled=False):
        positives = torch.arange(len(logits), device=logits.device)
        return F.cross_entropy(full_precision(logits), positives)


# Layers between the pooled vector and the loss. They are discarded after training.


class MLP(nn.Sequential):
    """A linear layer with tanh, (…, D) to (…, D). The initialisation is BERT's: weights N(0, 0.02²), biases 0."""

    def __init__(self, dim: int) -> None:
        dense = nn.Linear(dim, dim)
        nn.init.normal_(dense.weight, std=0.02)
        nn.init.zeros_(dense.bias)
        super().__init__(dense, nn.Tanh())


# Losses between the D dimensions of two views: dimension-wise contrast and Barlow Twins.

BATCH_NORM_EPS = 1e-5
"""Constant that is added to the variance of a dimension, as in PyTorch's batch norm."""

DCLForm = Literal["per-sentence", "printed"]
"""Scaling of the loss of dimension-wise contrast.

"per-sentence" averages products over N and losses over D, as in the published code. "printed" takes sums over N and D,
as in the paper's formula.
"""


def standardised(x: Tensor, *, correction: int = 0, eps: float = BATCH_NORM_EPS) -> Tensor:
    """Scale each column of (N, D) to mean 0 and variance 1. The variance has the divisor N - `correction`."""
    centred = x - x.mean(dim=0)
    variance = centred.square().sum(dim=0) / max(len(x) - correction, 1)
    return centred / (variance + eps).sqrt()


def dimension_contrast(
    z1: Tensor, z2: Tensor, temperature: float, *, form: DCLForm = "per-sentence", eps: float = BATCH_NORM_EPS
) -> Tensor:
    """Compute the mean over dimensions c of -log softmax_d(<a_c, b_d> / (N tau))[c].

    a and b are the views `z1` and `z2` (N, D) with standardised columns. The softmax is over the dimensions d. The loss
    is low if each dimension of one view is most similar to the same dimension of the other view. The formula is for the
    default of `form`. Source: SimCSE++ (Xu et al., EMNLP 2023), equation 5.
    """
    with torch.autocast(z1.device.type, enabled=False):
        correction = 1 if form == "printed" else 0
        a, b = (standardised(full_precision(z), correction=correction, eps=eps) for z in (z1, z2))
        products = a.T @ b / temperature  # (D, D)
        if form == "printed":
            return info_nce(products) * len(products)
        return info_nce(products / len(a))


def cross_correlation(z1: Tensor, z2: Tensor, artificial: Tensor | None = None, *, centred: bool = False) -> Tensor:
    """Compute the cross-correlation C (D, D) of the columns of two views (N, D).

    If given, the M rows of `artificial` (M, D) are appended to both views. By default, C contains the cosines of
    columns, as in the SimCSE++ paper, and its rank is at most min(N + M, D). With `centred`, columns are standardised
    first, as in the published code of SimCSE++, and the rank is at most min(N + M - 1, D).
    """
    with torch.autocast(z1.device.type, enabled=False):
        views = [full_precision(z) for z in (z1, z2)]
        if artificial is not None:
            views = [torch.cat([z, artificial.to(z)]) for z in views]
        if centred:
            return standardised(views[0]).T @ standardised(views[1]) / len(views[0])
        return F.normalize(views[0], dim=0, eps=EPS).T @ F.normalize(views[1], dim=0, eps=EPS)


def barlow_twins(correlation: Tensor, off_diagonal: float) -> Tensor:
    """Compute sum_c (1 - C_cc)^2 + lambda sum_{c != d} C_cd^2 for a cross-correlation C (D, D).

    Lambda is `off_diagonal`. Source: SimCSE++, equation 4, without the minus sign that the paper prints before the sum.
    """
    identity = torch.eye(len(correlation), dtype=correlation.dtype, device=correlation.device)
    return ((correlation - identity).square() * identity.lerp(torch.ones_like(identity), off_diagonal)).sum()


def rank_of_cross_correlation(
    z1: Tensor, z2: Tensor, artificial: Tensor | None = None, *, centred: bool = False
) -> int:
    """Return the rank of the cross-correlation: the number of dimensions that Barlow Twins can use in a batch.

    The rank is computed in float64, because rounding errors of float32 would increase it.
    """
    with torch.no_grad():
        correlation = cross_correlation(z1.double(), z2.double(), artificial, centred=centred)
        return int(torch.linalg.matrix_rank(correlation))


# Gaussian noise, and negatives made of noise, whose directions are uniformly distributed on the sphere.

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
    """Move each row of `noise` (M, D) along its gradient g of the non-uniformity loss. A step adds rate * g / |g|.

    The loss compares `anchors` (N, D) with the noise. Source: DCLR, equations 2 to 4. If `sentences` (K, D) are given,
    they are added to the denominator of the loss, unlike in the paper. The result has no gradient.
    """
    with torch.no_grad(), torch.autocast(noise.device.type, enabled=False):
        for _ in range(steps):
            candidates = noise if sentences is None else torch.cat([noise, sentences])
            log_shares = cosine_logits(anchors, candidates, temperature).log_softmax(dim=1)[:, : len(noise)]
            noise = noise + rate * _steepest(noise, full_precision(anchors), log_shares)
    return noise


def _steepest(noise: Tensor, anchors: Tensor, log_shares: Tensor) -> Tensor:
    """Return unit vectors (M, D) along the gradient of the non-uniformity loss with respect to the noise (M, D).

    The loss is the sum over anchors h_i of -log (exp s(h_i, h'_i) / sum_m exp s(h_i, n_m)), where s is the cosine
    divided by the temperature tau, and h'_i is the positive. The gradient with respect to n_m is the sum over i of
    p_im (u_i - cos(h_i, n_m) v_m) / (tau |n_m|), where u_i and v_m are h_i and n_m, scaled to unit length. p_im is the
    share of n_m in the denominator of anchor i.

    `log_shares` (N, M) has the logarithms of p_im. Their softmax over i replaces p_im, so that small shares do not
    underflow. It equals p_im divided by the sum of p_im over i, so the direction of the gradient is the same.
    """
    unit_anchors, unit_noise = F.normalize(anchors, dim=1), F.normalize(noise, dim=1)
    shares = log_shares.softmax(dim=0)
    along = (shares * (unit_anchors @ unit_noise.T)).sum(dim=0)[:, None] * unit_noise
    return F.normalize(shares.T @ unit_anchors - along, dim=1)
