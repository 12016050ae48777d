"""Interface of an objective: the encoder passes that it needs, and the loss that it computes from their vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Needs:
    """The encoder passes that an objective needs."""

    views: int = 2
    """Number of dropout passes over the same sentences."""
    clean: bool = False
    """True if the objective needs one more pass over each text, without dropout and with gradient."""
    teacher: bool = False
    """True if the objective needs the vectors of a frozen teacher."""
    start: bool = False
    """True if the objective needs vectors that are computed with the encoder's initial weights."""
    host: bool = False
    """True if the host waits for results of the device, such as eigenvectors, to compute the loss or the report."""
    same_width: bool = False
    """True if the vectors of the teacher must have as many dimensions as the encoder's vectors."""


@dataclass(frozen=True)
class Views:
    """Pooled vectors before any head, in float32 or wider."""

    noisy: Tensor
    """Dropout views, (V, N, D)."""
    clean: Tensor | None = None
    """Vectors without dropout, (1, N, D), or (2, N, D) for pairs of texts."""
    teacher: Tensor | None = None
    """Vectors of the teacher, (N, D'), without gradient and without dropout."""
    start: Tensor | None = None
    """Vectors computed with the initial weights, (N, D), without gradient and without dropout."""


class Objective(nn.Module):
    """Base class of objectives: functions from views to named terms whose sum is the loss.

    An objective contains all layers that are discarded after training, such as head, batch norm and whitening. It draws
    random numbers only from `rng`, so that a run can be repeated and resumed. It is called outside autocast. Its input
    is always the whole batch, from all devices and all parts of gradient caching.
    """

    @property
    def needs(self) -> Needs:
        """Encoder passes whose vectors `forward` reads."""
        raise NotImplementedError

    def forward(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:
        """Compute the scalar terms of the loss.

        The terms are finite for any finite input, even for a batch of one sentence.
        """
        raise NotImplementedError

    def report(self) -> dict[str, float]:
        """Return figures of the last batch, which are logged with each evaluation.

        Before the first batch, return {}.
        """
        return {}

    def measured(self) -> dict[str, Tensor]:
        """Return scalars of the last batch, which are logged with each step. `MEASURED` lists their names.

        The scalars are on the batch's device and have no gradient.
        """
        return {}


REMOVED_SHARE = "removed_share"
MEASURED = (REMOVED_SHARE,)
"""Names of the quantities that objectives measure on every batch."""

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
"""Names of the augmentations, which make the views of a sentence differ in addition to dropout."""

P = TypeVar("P")


@dataclass(frozen=True, kw_only=True)
class Preset(Generic[P]):
    """Hyperparameters for one backbone, with their source."""

    source: str
    batch_size: int
    learning_rate: float
    params: P
    pooling: str = "cls"
    """Pooling of token vectors. The papers use [CLS]."""
    epochs: int = 1
    dropout: float | None = None
    """Dropout of hidden states and attention weights. None keeps the backbone's own rate."""
    augmentation: AugmentationName = "none"
    max_length: int = 32
    """Maximum tokens of a sentence or passage."""
    layers: tuple[int, ...] | None = None
    """Layers of the backbone that the trained encoder keeps. None keeps all layers, and an empty list keeps none."""
    teacher_backbone: str | None = None
    """Backbone from which SimCSE trains the teacher, if the user names no teacher.

    None means the run's own backbone.
    """


PASSAGES_SUFFIX = "-passages"
"""Suffix of the names of presets for corpora of passages."""


PASSAGES_SETTINGS: Mapping[str, Any] = {"augmentation": "cloze", "max_length": 64, "learning_rate": 1e-5, "epochs": 3}
"""Settings for passages. A sentence of a passage and the rest of the passage are a positive pair.

The same settings suit all objectives (ADR 0048).
"""


def minilm_presets(source: str, learning_rate: float, params: P, *, published: P) -> dict[str, Preset[P]]:
    """Return three presets for MiniLM: [CLS] pooling, mean pooling, and passages.

    The [CLS] preset has the `published` parameters, which are the paper's values for BERT-base. Its batch size and
    learning rate are the same for all objectives. `source`, `learning_rate` and `params` are for the preset with mean
    pooling. The preset for passages is the preset with mean pooling, changed by `PASSAGES_SETTINGS`.
    """
    minilm = Preset(source=source, batch_size=64, learning_rate=learning_rate, pooling="mean", params=params)
    on_cls = "the papers' values for BERT-base, on minilm's [CLS]; batch 64 and 3e-5 for every objective"
    on_passages = f"for sentences {source}; for passages ours, chosen on documents without their queries (ADR 0048)"
    return {
        "minilm-cls": Preset(source=on_cls, batch_size=64, learning_rate=3e-5, params=published),
        "minilm": minilm,
        f"minilm{PASSAGES_SUFFIX}": replace(minilm, source=on_passages, **PASSAGES_SETTINGS),
    }


@dataclass(frozen=True, kw_only=True)
class Recipe(Generic[P]):
    """An objective with the hyperparameters of its paper."""

    summary: str
    citation: str
    """BibTeX of the paper, for the model card."""
    build: Callable[[P, int], Objective]
    """Function that builds the objective from the parameters and the encoder's width."""
    presets: Mapping[str, Preset[P]]
    """Presets by name. A preset for one backbone has the backbone's name."""
    as_simcse: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that reduce the loss to SimCSE's."""
    needs_named_teacher: bool = False
    """True if the user must name a teacher.

    The objective then imitates a teacher instead of contrasting sentences, so a SimCSE encoder of the same backbone
    would not be a useful teacher.
    """
    ablations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Ablations by name. Each ablation lists the parameters that differ from the preset."""
    added_params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that configurations of earlier versions lack, with the values that apply to those configurations."""
