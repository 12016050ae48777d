"""Losses between the D dimensions of two views, in float32 or wider: dimension-wise contrast and Barlow Twins."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from models.precision import full_precision
from training.objectives.contrastive import EPS, info_nce

BATCH_NORM_EPS = 1e-5
"""Added to the variance of a dimension, as PyTorch's batch norm does."""

DCLForm = Literal["per-sentence", "printed"]
"""Products divided by N and losses averaged over D, as published code has them; or both summed, as printed."""


def standardised(x: Tensor, *, correction: int = 0, eps: float = BATCH_NORM_EPS) -> Tensor:
    """Each column of (N, D) with mean 0 and variance 1, the variance divided by N less `correction`."""
    centred = x - x.mean(dim=0)
    variance = centred.square().sum(dim=0) / max(len(x) - correction, 1)
    return centred / (variance + eps).sqrt()


def dimension_contrast(
    z1: Tensor, z2: Tensor, temperature: float, *, form: DCLForm = "per-sentence", eps: float = BATCH_NORM_EPS
) -> Tensor:
    """-log softmax_d(<z1_c, z2_d> / tau)[c] of the standardised columns of (N, D): each dimension finds itself.

    Source: SimCSE++ (Xu et al., EMNLP 2023), equation 5.
    """
    with torch.autocast(z1.device.type, enabled=False):
        correction = 1 if form == "printed" else 0
        a, b = (standardised(full_precision(z), correction=correction, eps=eps) for z in (z1, z2))
        products = a.T @ b / temperature  # (D, D)
        if form == "printed":
            return info_nce(products) * len(products)
        return info_nce(products / len(a))


def cross_correlation(z1: Tensor, z2: Tensor, artificial: Tensor | None = None, *, centred: bool = False) -> Tensor:
    """C (D, D) of the columns of (N, D); (M, D) artificial rows are added to both views alike.

    As the paper has it the cosine of columns, with rank min(N + M, D); `centred`, as in its code, one less.
    """
    with torch.autocast(z1.device.type, enabled=False):
        views = [full_precision(z) for z in (z1, z2)]
        if artificial is not None:
            views = [torch.cat([z, artificial.to(z)]) for z in views]
        if centred:
            return standardised(views[0]).T @ standardised(views[1]) / len(views[0])
        return F.normalize(views[0], dim=0, eps=EPS).T @ F.normalize(views[1], dim=0, eps=EPS)


def barlow_twins(correlation: Tensor, off_diagonal: float) -> Tensor:
    """sum_c (1 - C_cc)^2 + lambda sum_{c != d} C_cd^2 (SimCSE++, equation 4, less the minus sign before its sum)."""
    identity = torch.eye(len(correlation), dtype=correlation.dtype, device=correlation.device)
    return ((correlation - identity).square() * identity.lerp(torch.ones_like(identity), off_diagonal)).sum()


def rank_of_cross_correlation(
    z1: Tensor, z2: Tensor, artificial: Tensor | None = None, *, centred: bool = False
) -> int:
    """How many dimensions a batch lets Barlow Twins see: in float64, where rounding does not look like rank."""
    with torch.no_grad():
        correlation = cross_correlation(z1.double(), z2.double(), artificial, centred=centred)
        return int(torch.linalg.matrix_rank(correlation))
