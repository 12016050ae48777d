"""What an engine must do, and what is known of the model that it loads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from models.bundle import Manifest
from models.runtimes import base
from models.runtimes.choice import Choice
from models.tokenizer import Direction, Piece, Tokens

Embedded = base.Embedded


class EngineError(RuntimeError):
    """The engine can't run here, or not as the bundle asks; the message says why and what to change."""


class Engine(Protocol):
    """A loaded model. `embed` runs on `streams` threads, beside the other methods, `tokenize` beside itself too."""

    name: str
    precision: str
    device: str
    vocab_size: int
    streams: int
    """Batches that it embeds side by side."""
    batch_tokens: int
    """Padded tokens of a batch, beyond which it is no quicker."""
    length_step: int
    """Batches are padded to a multiple of so many tokens."""
    choice: Choice
    """How runtime and precision were found."""

    def tokenize(self, texts: Sequence[str], direction: Direction) -> list[Tokens]:
        """Tokens of each text, cut to the model's length on the side that `direction` names."""

    def pieces(self, texts: Sequence[str], special_tokens: bool) -> list[list[Piece]]:
        """Every token of each text, nothing cut; those that the tokenizer adds only if `special_tokens`."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of ids of the vocabulary."""

    def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
        """One padded batch through the model, rows in the order given; `alone`: no other runs beside it."""


@dataclass(frozen=True)
class EngineOptions(base.Options):
    """What an engine may use of the machine, and in what numbers it is to compute; None leaves that to it."""

    precision: str | None = None


@dataclass(frozen=True)
class Model:
    """What is known of a model before its weights are read, and how to read them."""

    manifest: Manifest
    load: Callable[[EngineOptions], Engine]
    check: Callable[[EngineOptions], None] = lambda _: None
    """Raises EngineError, quickly, where `load` could not but fail on this machine."""
    report: bytes | None = None
    """How it was judged, as JSON."""
    report_page: bytes | None = None
    """The same as HTML."""
    int8_limit: float | None = None
    """The range of int8 output, if one was calibrated."""
    matryoshka: Collection[int] = ()
    """Widths that it was trained to be cut to."""
