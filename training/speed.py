"""How fast a run is, in sentences, tokens and arithmetic, and how near to what the device can do."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from models.encoder import Encoder
from training.corpus.batches import Batch
from training.objectives.base import Needs

FIGURES = ("sentences_per_s", "tokens_per_s", "flops_per_s", "utilisation")
"""What a meter tells: the only values of a run that two runs of one configuration need not share."""


@dataclass(frozen=True)
class Work:
    """The arithmetic of an encoder's matrix products; whatever else it computes is not counted, nor is padding.

    The last layer counts as the others do, though a step computes most of it for the first tokens alone where no more
    is pooled: of a BERT-base a sixteenth, so much less is really done than `utilisation` says of [CLS].
    """

    weights: int
    """In the linear layers that a token passes."""
    attention: int
    """Layers x width: a token pays 4 operations for each of these and each token it attends to."""
    frozen: int = 0
    """Those of the weights that a backward pass computes no gradient of."""

    @classmethod
    def of(cls, encoder: Encoder) -> Work:
        """Counted from the backbone's layers; the pooler that no vector passes is left out."""
        linear = [
            layer
            for name, layer in encoder.backbone.named_modules()
            if isinstance(layer, nn.Linear) and not name.startswith("pooler")
        ]
        config = encoder.backbone.config
        return cls(
            sum(layer.weight.numel() for layer in linear),
            config.num_hidden_layers * config.hidden_size,
            sum(layer.weight.numel() for layer in linear if not layer.weight.requires_grad),
        )

    def forward(self, lengths: Iterable[int]) -> float:
        """Operations of one pass over sentences of so many tokens."""
        return sum(2.0 * self.weights * length + 4.0 * self.attention * length * length for length in lengths)

    def training(self, lengths: Sequence[int]) -> float:
        """Operations of a pass and its backward pass: three forward ones, less the gradients of frozen weights."""
        return 3 * self.forward(lengths) - 2.0 * self.frozen * sum(lengths)


@dataclass(frozen=True, kw_only=True)
class Meter:
    """Turns batches and the seconds they took into what the log says of speed."""

    needs: Needs
    work: Work
    teacher: Work | None
    peak: float
    """Operations a second of a large matrix product, on all devices together."""
    processes: int = 1
    recalled_after: float = math.inf
    """The step after which nothing passes through a frozen encoder any more."""

    def __call__(self, steps: Sequence[tuple[int, Batch]], seconds: float) -> dict[str, float]:
        """Sentences, tokens and operations a second, of all processes; `utilisation` is the share of the peak.

        `steps` are their numbers and batches. A second encoding for gradient caching is not counted, as it is no
        progress. The other processes are taken to have had as many tokens as this
        one.
        """
        passes = self.needs.views + self.needs.clean
        sentences = sum(len(batch.sentences) for _, batch in steps)
        tokens = sum(sum(batch.lengths(passes)) for _, batch in steps) * self.processes
        operations = sum(self._operations(step, batch, passes) for step, batch in steps) * self.processes
        figures = (sentences / seconds, tokens / seconds, operations / seconds, operations / seconds / self.peak)
        return dict(zip(FIGURES, figures, strict=True))

    def _operations(self, step: int, batch: Batch, passes: int) -> float:
        lengths = [len(sentence) for sentence in batch.tokens]
        trained = self.work.training(batch.lengths(passes))
        if step > self.recalled_after:
            return trained
        taught = self.teacher.forward(map(len, batch.teacher_tokens or ())) if self.teacher else 0
        return trained + self.needs.start * self.work.forward(lengths) + taught


@cache
def matmul_peak(device: torch.device, dtype: torch.dtype, *, seconds: float = 0.2) -> float:
    """Operations a second of a square matrix product large enough to be limited by arithmetic alone: the best seen."""
    size = 8192 if device.type == "cuda" else 1024
    rng = torch.Generator(device).manual_seed(0)  # the run's random state is its own
    a, b = torch.randn(2, size, size, generator=rng, device=device).to(dtype)
    best, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < seconds or best == float("inf"):
        started = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best
