"""What a post-processing is: a transform fitted to the pooled vectors of an encoder that stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TextIO, TypeVar

import torch

from models.encoder import Encoder
from models.errors import Refused
from models.transform import Transform
from training.corpus.corpus import Corpus

MOST_RATE = 1e30
"""A learning rate: the first step of Adam is ten times that, and must be a float32."""


class PostprocessError(Refused):
    """No transform can be fitted, in one line that says what would change that."""


@dataclass(frozen=True)
class Fitted:
    """A transform, and what is worth knowing of its fit."""

    transform: Transform
    facts: Mapping[str, float]


P_contra = TypeVar("P_contra", contravariant=True)
P = TypeVar("P")


class Fit(Protocol[P_contra]):
    """From an encoder, its corpus and parameters to a transform; draws from torch's own generator."""

    def __call__(self, encoder: Encoder, corpus: Corpus, params: P_contra, *, seed: int, stream: TextIO) -> Fitted:
        """`seed` orders the corpus; `stream` is told how far it is."""


@dataclass(frozen=True, kw_only=True)
class Postprocess(Generic[P]):
    """A post-processing as its paper has it."""

    summary: str
    citation: str
    """BibTeX of the paper, for the card of what it is fitted to."""
    params: P
    """As published, a frozen dataclass."""
    fit: Fit[P]

    def apply(self, encoder: Encoder, corpus: Corpus, params: P, *, seed: int, stream: TextIO) -> Fitted:
        """Fits the transform and attaches it to the encoder.

        Raises:
            PostprocessError: the encoder has a transform already, or the corpus does not suffice.
        """
        if encoder.transform is not None:
            raise PostprocessError(
                f"the encoder has a transform already ({encoder.transform.kind}): take the one it was made from"
            )
        torch.manual_seed(seed)
        fitted = self.fit(encoder, corpus, params, seed=seed, stream=stream)
        encoder.attach(fitted.transform)
        return fitted


def check_learning_rate(params: Any) -> None:
    """Raises `ValueError` if it is not above 0, or if no step of it could be taken."""
    check_above_zero(params, "learning_rate")
    if params.learning_rate > MOST_RATE:
        raise ValueError(f"learning_rate: {params.learning_rate} is above {MOST_RATE:g}")


def check_above_zero(params: Any, *names: str) -> None:
    """Raises `ValueError` if a value that is there is not above 0, naming the field."""
    for name in names:
        value = getattr(params, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name}: {value} is not above 0")
