"""What an objective is: it declares what it needs of the encoder, and scores what it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Needs:
    """The passes through an encoder that an objective asks for."""

    views: int = 2
    """Dropout passes over the same sentences."""
    clean: bool = False
    """One more pass over each text, dropout off, with gradient."""
    teacher: bool = False
    """The same sentences through a frozen reference encoder."""
    start: bool = False
    """And through the encoder as it was before the first step."""
    host: bool = False
    """Whether the host takes part in its loss, and waits for the device: eigenvectors are its work."""


@dataclass(frozen=True)
class Views:
    """Pooled vectors before any head, float32 or wider."""

    noisy: Tensor
    """(V, N, D)"""
    clean: Tensor | None = None
    """(1, N, D), or (2, N, D) of pairs of texts"""
    teacher: Tensor | None = None
    """(N, D'), without gradient, dropout off"""
    start: Tensor | None = None
    """(N, D), as the teacher's"""


class Objective(Protocol):
    """Views to named terms whose sum is the loss.

    In practice an `nn.Module`: whatever is thrown away after training (head, batch norm, whitening) belongs to it.
    It draws from `rng` alone, so that a run can be repeated and resumed, and is called outside autocast. Its batch is
    the whole batch: gathered from all devices, and from all passes where gradients are cached.
    """

    @property
    def needs(self) -> Needs:
        """What `__call__` expects to find in its views."""

    def __call__(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:
        """Each term of the loss, a scalar; finite on any finite input, a batch of one sentence included."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Weights trained beside the encoder's."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The same, by name."""

    def state_dict(self) -> dict[str, Any]:
        """Weights and running statistics, for a checkpoint."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> object:
        """Takes back what `state_dict` gave."""

    def to(self, device: torch.device) -> object:
        """Moves the weights, in place."""


@runtime_checkable
class Reports(Protocol):
    """An objective that has something to say besides its terms."""

    def report(self) -> dict[str, float]:
        """Figures of the last batch, logged with each evaluation; nothing before there was one."""


@runtime_checkable
class Measures(Protocol):
    """An objective that measures something of every batch besides its terms."""

    def measured(self) -> dict[str, Tensor]:
        """Scalars of the last batch, on its device and without gradient, logged with each step; see `MEASURED`."""


REMOVED_SHARE = "removed_share"
MEASURED = (REMOVED_SHARE,)
"""Names of what objectives measure of every batch."""

AugmentationName = Literal[
    "none",
    "token-shuffling",
    "token-swapping",
    "token-cutoff",
    "feature-cutoff",
    "span-cutoff",
    "crop",
    "cloze",
    "title",
]
"""What a run does besides dropout so that the views of a sentence differ."""

P = TypeVar("P")


@dataclass(frozen=True, kw_only=True)
class Preset(Generic[P]):
    """Values for one backbone, with their source."""

    source: str
    batch_size: int
    learning_rate: float
    pooling: str
    params: P
    epochs: int = 1
    dropout: float | None = None
    """Of hidden states and attention weights; None leaves the backbone's own."""
    augmentation: AugmentationName = "none"
    max_length: int = 32
    """Tokens of a sentence or passage."""
    teacher_backbone: str | None = None
    """What SimCSE trains a teacher from where none is named; None is the run's own backbone."""


def on_cls_of_minilm(params: P) -> Preset[P]:
    """What the papers have for BERT-base, on [CLS] of the small encoder here: one batch and one rate for all five."""
    return Preset(
        source="the papers' values for BERT-base, on minilm's [CLS]; batch 64 and 3e-5 for every objective",
        batch_size=64,
        learning_rate=3e-5,
        pooling="cls",
        params=params,
    )


ON_PASSAGES = "-passages"
"""Ends the name of a preset for a corpus of passages."""


FOR_PASSAGES: Mapping[str, Any] = {"augmentation": "cloze", "max_length": 64, "learning_rate": 1e-5, "epochs": 3}
"""A sentence has to find its own passage. The pairs decide, and one rate suits all objectives (ADR 0048)."""


def on_passages(preset: Preset[P]) -> Preset[P]:
    """Make of a preset for sentences the one for passages."""
    source = f"for sentences {preset.source}; for passages ours, chosen on documents without their queries (ADR 0048)"
    return replace(preset, source=source, **FOR_PASSAGES)


@dataclass(frozen=True, kw_only=True)
class Recipe(Generic[P]):
    """An objective as its paper trains it."""

    summary: str
    citation: str
    """BibTeX of the paper, for the card of what is trained by it."""
    build: Callable[[P, int], Objective]
    """From its parameters and the encoder's width."""
    presets: Mapping[str, Preset[P]]
    """By backbone."""
    off: Mapping[str, Any] = field(default_factory=dict)
    """The parameters that switch off all it adds to SimCSE: with them the two losses are one."""
    imitates: bool = False
    """Whether it is no contrast but learns from its teacher: SimCSE's encoder of the same backbone would be none."""
    ablations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name, the parameters that differ."""
    added: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that configurations of earlier versions lack, with the value that these runs had."""
