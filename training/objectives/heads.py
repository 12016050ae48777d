"""Layers between the pooled vector and the loss, dropped after training."""

from __future__ import annotations

from torch import nn


class MLP(nn.Sequential):
    """Linear and tanh, (…, D) to (…, D), with BERT's initialisation: weights N(0, 0.02), biases 0."""

    def __init__(self, dim: int) -> None:
        dense = nn.Linear(dim, dim)
        nn.init.normal_(dense.weight, std=0.02)
        nn.init.zeros_(dense.bias)
        super().__init__(dense, nn.Tanh())
