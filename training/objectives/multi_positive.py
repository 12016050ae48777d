"""Losses for several positives of one anchor: a sum of InfoNCE, and interpretations of WhitenedCSE's equation 8.

s_ip is the similarity of anchor i to its p-th positive, divided by tau. Z_ip is the sum of exp s over the candidates of
view p. lambda_p is the weight of the p-th positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from training.objectives.contrastive import cosine_logits

MultiPositive = Literal["L1", "L2-eq8", "L2-no-minus", "L2-intended"]


def positive_logits(views: Tensor, temperature: float) -> Tensor:
    """Compute the logits of the anchors, which are the first view, against the P views after it: (P, N, N)."""
    anchors, positives = views[0], views[1:]
    logits = cosine_logits(anchors, positives.flatten(0, 1), temperature)  # (N, P N)
    return logits.reshape(len(anchors), len(positives), -1).transpose(0, 1)


def multi_positive_loss(logits: Tensor, weights: Sequence[float], reading: MultiPositive) -> Tensor:
    """Compute the mean loss over N anchors, from (P, N, N) logits with positives on the diagonals, and P weights.

    L1 is equation 7, sum_p lambda_p (log Z - s). The remaining options are interpretations of equation 8.

    L2-eq8, as printed: -log sum_p lambda_p exp(-s) / Z. This loss is smallest if the positives are least similar.

    L2-no-minus, as in commented-out published code: -log sum_p lambda_p exp(s) / Z.

    L2-intended: log sum_p lambda_p Z exp(-s). Its gradient is largest for the least similar positive.
    """
    log_shares = positive_log_shares(logits)
    match reading:
        case "L1":
            losses = -torch.stack([w * x for w, x in zip(weights, log_shares, strict=True)]).sum(dim=0)
        case "L2-eq8":
            losses = -_log_weighted_sum(weights, log_shares - 2 * logits.diagonal(dim1=1, dim2=2))
        case "L2-no-minus":
            losses = -_log_weighted_sum(weights, log_shares)
        case "L2-intended":
            losses = _log_weighted_sum(weights, -log_shares)
    return losses.mean()


def positive_log_shares(logits: Tensor) -> Tensor:
    """Compute s - log Z of (P, N, N) logits, (P, N).

    The result is also precise near 0, where the logarithm of a rounded softmax would be exactly 0.
    """
    itself = torch.eye(logits.shape[-1], dtype=torch.bool, device=logits.device)
    others = logits.masked_fill(itself, -torch.inf).logsumexp(dim=2)
    return F.logsigmoid(logits.diagonal(dim1=1, dim2=2) - others)


def _log_weighted_sum(weights: Sequence[float], exponents: Tensor) -> Tensor:
    """Compute log sum_p lambda_p exp x_p: (P, N) to (N,)."""
    return torch.stack([math.log(w) + x for w, x in zip(weights, exponents, strict=True)]).logsumexp(dim=0)
