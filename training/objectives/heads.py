"""Layers between the pooled vector and the loss. They are discarded after training."""

from __future__ import annotations

from torch import nn


class MLP(nn.Sequential):
    """A linear layer with tanh, (…, D) to (…, D). Initialisation is BERT's: weights N(0, 0.02), biases 0."""

    def __init__(self, dim: int) -> None:
        dense = nn.Linear(dim, dim)
        nn.init.normal_(dense.weight, std=0.02)
        nn.init.zeros_(dense.bias)
        super().__init__(dense, nn.Tanh())
