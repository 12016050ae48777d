"""Speed of a run in sentences, tokens and operations per second, and as a share of the device's peak speed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from models.encoder.encoder import Encoder, linear_layers
from training.data.batches import Batch
from training.objectives.base import Needs

FIGURES = ("sentences_per_s", "tokens_per_s", "flops_per_s", "utilisation")
"""Names of the figures that a meter computes. Two runs of the same configuration differ only in these figures."""


@dataclass(frozen=True)
class OperationCount:
    """The number of operations of an encoder's matrix products.

    Other computations and padding are not counted.

    With [CLS] pooling, a step computes most of the last layer only for [CLS] tokens, but the count includes the whole
    layer. For BERT-base, the count is therefore a sixteenth too high.
    """

    weights: int
    """Number of weights in the linear layers that each token passes through."""
    attention: int
    """Number of layers times width. Attention costs 4 times this number of operations for each pair of tokens."""
    frozen: int = 0
    """Number of weights without a gradient."""

    @classmethod
    def of(cls, encoder: Encoder) -> OperationCount:
        linear = linear_layers(encoder.backbone).values()
        config = encoder.backbone.config
        return cls(
            sum(layer.weight.numel() for layer in linear),
            config.num_hidden_layers * config.hidden_size,
            sum(layer.weight.numel() for layer in linear if not layer.weight.requires_grad),
        )

    def forward(self, lengths: Iterable[int]) -> float:
        """Count the operations of one forward pass over sentences with these lengths in tokens."""
        return sum(2.0 * self.weights * length + 4.0 * self.attention * length * length for length in lengths)

    def training(self, lengths: Sequence[int]) -> float:
        """Count the operations of forward and backward pass.

        Both together cost as much as three forward passes, minus the gradients of frozen weights.
        """
        return 3 * self.forward(lengths) - 2.0 * self.frozen * sum(lengths)


@dataclass(frozen=True, kw_only=True)
class SpeedMeter:
    """Meter that computes the speeds that a run logs, such as tokens per second."""

    needs: Needs
    work: OperationCount
    teacher: OperationCount | None
    peak: float
    """Peak operations per second of all devices together, measured with a large matrix product."""
    processes: int = 1
    cached_after: float = math.inf
    """Step after which the vectors of frozen encoders are read from the cache."""

    def __call__(self, steps: Sequence[tuple[int, Batch]], seconds: float) -> dict[str, float]:
        """Compute sentences, tokens and operations per second, over all processes.

        The result also has `utilisation`: operations per second, divided by `peak`. `steps` has pairs of step number
        and batch, and `seconds` is the total duration of the steps. Gradient caching encodes each batch twice, but the
        second encoding is not counted. The other processes are assumed to have the same number of tokens as this
        process.
        """
        sentences = sum(len(batch.sentences) for _, batch in steps)
        tokens = sum(sum(self._lengths(batch)) for _, batch in steps) * self.processes
        operations = sum(self._operations(step, batch) for step, batch in steps) * self.processes
        figures = (sentences / seconds, tokens / seconds, operations / seconds, operations / seconds / self.peak)
        return dict(zip(FIGURES, figures, strict=True))

    def _lengths(self, batch: Batch) -> list[int]:
        """Return the lengths in tokens of all texts that this process's trained encoder reads in a step, in all passes.

        With positive pairs, each pass with dropout encodes one text of every pair. If the objective also needs a pass
        without dropout (`Needs.clean`), that pass encodes both texts.
        """
        texts = 1 if batch.first_tokens is None else 2
        return batch.lengths(self.needs.views) + batch.lengths(texts) * self.needs.clean

    def _operations(self, step: int, batch: Batch) -> float:
        lengths = [len(sentence) for sentence in batch.tokens]
        trained = self.work.training(self._lengths(batch))
        if step > self.cached_after:
            return trained
        taught = self.teacher.forward(map(len, batch.teacher_tokens or ())) if self.teacher else 0
        return trained + self.needs.start * self.work.forward(lengths) + taught


@cache
def matmul_peak(device: torch.device, dtype: torch.dtype, *, seconds: float = 0.2) -> float:
    """Measure the device's peak operations per second, with products of large square matrices."""
    size = 8192 if device.type == "cuda" else 1024
    rng = torch.Generator(device).manual_seed(0)  # A separate generator does not change the run's random state.
    a, b = torch.randn(2, size, size, generator=rng, device=device).to(dtype)
    best, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < seconds or best == float("inf"):
        started = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best
