"""Glow for vectors: the normalising flow of BERT-flow, from pooled vectors to N(0, I).

Kingma and Dhariwal, "Glow: Generative Flow with Invertible 1x1 Convolutions" (NeurIPS 2018), arXiv:1807.03039,
configured as by Li et al., "On the Sentence Embeddings from Pre-trained Language Models" (EMNLP 2020),
arXiv:2011.05864.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

LOG_SCALE_FACTOR = 3.0
"""Factor of learnt log-scales, as in Glow's published code. It makes log-scales change three times as fast."""


class ActNorm(nn.Module):
    """Per-component shift and scale, (x + b) exp(3 s): (N, D) to (N, D)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width))
        self.log_scale = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.shift) * (LOG_SCALE_FACTOR * self.log_scale).exp()

    def log_det(self) -> Tensor:
        """Return the log of the Jacobian's determinant, which does not depend on the input."""
        return LOG_SCALE_FACTOR * self.log_scale.sum()


class AdditiveCoupling(nn.Module):
    """A layer that shifts the second half of the components by a function of the first half. It preserves volume."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(
            *(nn.Linear(width // 2, hidden, bias=False), ActNorm(hidden), nn.ReLU()),
            *(nn.Linear(hidden, hidden, bias=False), ActNorm(hidden), nn.ReLU()),
        )
        self.shift = nn.Linear(hidden, width // 2)

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first, second + self.shift(self.hidden(first))], dim=-1)


class Step(nn.Module):
    """A step of the flow: actnorm, reversal of the components, additive coupling. It maps (N, D) to (N, D)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.actnorm = ActNorm(width)
        self.coupling = AdditiveCoupling(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        reordered: Tensor = self.coupling(self.actnorm(x).flip(-1))
        return reordered


class Flow(nn.Module):
    """Bijection from pooled vectors (N, D) to latents (N, D).

    A vector is treated as an image of one pixel, so Glow's squeeze has no effect. After each level except the last, the
    second half of the components is output, and the first half is the input of the next level. The latents of all
    levels are concatenated.
    """

    kind: ClassVar = "flow"

    def __init__(self, *, dim: int, levels: int, depth: int, hidden: int) -> None:
        super().__init__()
        if dim % 2**levels:
            raise ValueError(f"{dim} dimensions can't be halved {levels} times, once in each of {levels} levels")
        self.sizes = {"dim": dim, "levels": levels, "depth": depth, "hidden": hidden}
        self.dim = self.out = dim
        self.levels = nn.ModuleList(
            nn.ModuleList(Step(dim >> level, hidden) for _ in range(depth)) for level in range(levels)
        )

    def forward(self, pooled: Tensor) -> Tensor:
        leaving: list[Tensor] = []
        x = pooled
        for level in range(len(self.levels)):
            if level:
                x, half = x.chunk(2, dim=-1)
                leaving.append(half)
            for step in self.steps(level):
                x = step(x)
        return torch.cat([*leaving, x], dim=-1)

    def log_det(self) -> Tensor:
        """Return the log of the Jacobian's determinant, which does not depend on the input."""
        steps = [step for level in range(len(self.levels)) for step in self.steps(level)]
        return torch.stack([step.actnorm.log_det() for step in steps]).sum()

    def steps(self, level: int) -> list[Step]:
        """Return the steps of a level, in their order."""
        return list(cast("Iterable[Step]", self.levels[level]))
