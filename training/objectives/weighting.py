"""What a frozen judge says of negatives: which are false ones, and how alike the rest are (DCLR)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from training.objectives.contrastive import cosine_logits


def instance_weights(anchors: Tensor, sentences: Tensor, noise: Tensor, threshold: float) -> Tensor:
    """Alpha (N, N + M): 0 for a negative whose cosine with the anchor reaches the threshold, else 1; equation 5.

    `anchors` and `sentences` (N, D') are the batch as the judge sees it, twice the same if it has one view; the
    positives on the diagonal keep their 1. So does all noise (M, D) where D is not D': there is no cosine then.
    """
    genuine = cosine_logits(anchors, sentences, 1.0) < threshold
    if noise.shape[1] == anchors.shape[1]:
        genuine_noise = cosine_logits(anchors, noise, 1.0) < threshold
    else:
        genuine_noise = genuine.new_ones(len(anchors), len(noise))
    return torch.cat([genuine, genuine_noise], dim=1).to(noise.dtype).fill_diagonal_(1)


def removed_share(weights: Tensor) -> Tensor:
    """The share of the N (N - 1) in-batch negatives that alpha (N, N + M) removes; 0 of a single sentence."""
    n = len(weights)
    return (weights[:, :n] == 0).to(weights.dtype).sum() / max(n * (n - 1), 1)


def binary_cross_entropy(logits: Tensor) -> Tensor:
    """-(y log p + (1 - y) log(1 - p)) with p the softmax of a row, y its diagonal; the mean over all (N, M >= N).

    The published loss of DCLR, except that log(1 - p) stays finite where p rounds to 1: there it is the logarithm of
    the others' sum.
    """
    log_shares = logits.log_softmax(dim=1)
    largest = logits.argmax(dim=1, keepdim=True)  # no other share is above 1/2
    others = logits.scatter(1, largest, torch.finfo(logits.dtype).min)
    log_others = others.logsumexp(dim=1, keepdim=True) - logits.logsumexp(dim=1, keepdim=True)
    log_complements = torch.log1p(-log_shares.exp().scatter(1, largest, 0)).scatter(1, largest, log_others)
    positive = torch.eye(*logits.shape, dtype=torch.bool, device=logits.device)
    return -torch.where(positive, log_shares, log_complements).mean()


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL of a row of `logits` (N, N), softened, from the teacher's at the same temperature; the mean over N.

    The teacher's logits are the cosines of its vectors (N, D'). The paper names the ablation and leaves the rest open:
    this reading is ours. As in RankCSE (Liu et al., ACL 2023) the diagonal is left out: that a sentence is like itself
    is no news, and at a temperature of 0.05 it would be nearly all that a row says.
    """
    targets = cosine_logits(teacher.detach(), teacher.detach(), temperature)
    shares, wanted = (_others(each).log_softmax(dim=1) for each in (logits, targets))
    return F.kl_div(shares, wanted, reduction="batchmean", log_target=True)


def _others(square: Tensor) -> Tensor:
    """(N, N) without its diagonal, (N, N - 1)."""
    n = len(square)
    return square.flatten()[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1)
