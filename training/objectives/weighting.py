"""Weights of negatives by a judge (DCLR), which is the teacher or the encoder itself, and the terms that use them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from training.objectives.contrastive import cosine_logits


def instance_weights(anchors: Tensor, sentences: Tensor, noise: Tensor, threshold: float) -> Tensor:
    """Compute alpha (N, N + M) of equation 5: 0 for a negative whose cosine reaches the threshold, else 1.

    `anchors` and `sentences` (N, D') are the judge's vectors of the batch. A judge with one view gives the same tensor
    twice. Positives, on the diagonal, keep weight 1. If D differs from D', all noise (M, D) keeps weight 1, because
    there is no cosine.
    """
    genuine = cosine_logits(anchors, sentences, 1.0) < threshold
    if noise.shape[1] == anchors.shape[1]:
        genuine_noise = cosine_logits(anchors, noise, 1.0) < threshold
    else:
        genuine_noise = genuine.new_ones(len(anchors), len(noise))
    return torch.cat([genuine, genuine_noise], dim=1).to(noise.dtype).fill_diagonal_(1)


def removed_share(weights: Tensor) -> Tensor:
    """Return the share of the N (N - 1) in-batch negatives that alpha (N, N + M) removes.

    It is 0 for a single sentence.
    """
    n = len(weights)
    return (weights[:, :n] == 0).to(weights.dtype).sum() / max(n * (n - 1), 1)


def binary_cross_entropy(logits: Tensor) -> Tensor:
    """Compute the mean over (N, M >= N) of -(y log p + (1 - y) log(1 - p)). p is a row's softmax, y its diagonal.

    This is the loss in DCLR's published code, except that log(1 - p) stays finite if p rounds to 1. In that case it is
    computed from the exponentials of the remaining logits.
    """
    log_shares = logits.log_softmax(dim=1)
    largest = logits.argmax(dim=1, keepdim=True)  # Only the largest share can round to 1.
    others = logits.scatter(1, largest, torch.finfo(logits.dtype).min)
    log_others = others.logsumexp(dim=1, keepdim=True) - logits.logsumexp(dim=1, keepdim=True)
    log_complements = torch.log1p(-log_shares.exp().scatter(1, largest, 0)).scatter(1, largest, log_others)
    positive = torch.eye(*logits.shape, dtype=torch.bool, device=logits.device)
    return -torch.where(positive, log_shares, log_complements).mean()


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute KL(teacher || student) of the softmax of each row, the mean over N. `logits` (N, N) are the student's.

    The teacher's logits are the cosines of its vectors (N, D') at the same temperature. The paper names this ablation
    without details, so the definition is ours. As in RankCSE (Liu et al., ACL 2023), the diagonal is left out. A
    sentence's similarity to itself carries no information, and at a temperature of 0.05 it would dominate the row.
    """
    targets = cosine_logits(teacher.detach(), teacher.detach(), temperature)
    shares, wanted = (_others(each).log_softmax(dim=1) for each in (logits, targets))
    return F.kl_div(shares, wanted, reduction="batchmean", log_target=True)


def _others(square: Tensor) -> Tensor:
    """Drop the diagonal: (N, N) to (N, N - 1)."""
    n = len(square)
    return square.flatten()[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1)
