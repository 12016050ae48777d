"""Contrastive losses, in float32 or wider under any autocast, and the head between pooled vector and loss."""

from __future__ import annotations

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


def info_nce(logits: Tensor) -> Tensor:
    """Compute the mean over N rows of -log softmax at the positive. Positives are on the diagonal of (N, M >= N)."""
    with torch.autocast(logits.device.type, enabled=False):
        positives = torch.arange(len(logits), device=logits.device)
        return F.cross_entropy(full_precision(logits), positives)


# Layers between the pooled vector and the loss. They are discarded after training.


class MLP(nn.Sequential):
    """A linear layer with tanh, (…, D) to (…, D). Initialisation is BERT's: weights N(0, 0.02), biases 0."""

    def __init__(self, dim: int) -> None:
        dense = nn.Linear(dim, dim)
        nn.init.normal_(dense.weight, std=0.02)
        nn.init.zeros_(dense.bias)
        super().__init__(dense, nn.Tanh())
