"""The protocol of an engine, and facts about the model that it loads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from models import cpus
from models.bundle.bundle import Manifest
from models.bundle.tokenizer import Direction, Piece, TextPair, Tokens
from models.runtimes import base
from models.runtimes.choice import Choice
from serving.settings import Settings

Embedded = base.Embedded
Floats = base.Floats


class EngineError(RuntimeError):
    """The engine can't run here, or not as the bundle requires. The message says why and what to change."""


class Engine(Protocol):
    """A loaded model.

    `embed` runs in `streams` threads, concurrently with the other methods. `tokenize` may run concurrently, too. On a
    CPU, one more thread may call `embed` for a batch `alone`.
    """

    name: str
    precision: str
    device: str
    vocab_size: int
    streams: int
    """Maximum number of batches that the engine embeds concurrently."""
    batch_tokens: int
    """Batch size in padded tokens above which throughput no longer increases."""
    length_step: int
    """Batches are padded to a multiple of this number of tokens."""
    choice: Choice
    """The selected runtime and precision, and the reason."""

    @property
    def token_dim(self) -> int | None:
        """Width of token vectors. None if the bundle's graph has no output for them."""

    def tokenize(self, texts: Sequence[str], direction: Direction) -> list[Tokens]:
        """Return the tokens of each text, truncated to the model's length. `direction` is the truncated side."""

    def tokenize_pairs(self, pairs: Sequence[TextPair], direction: Direction) -> list[Tokens]:
        """Return the tokens of each pair of texts, truncated together. Only a cross-encoder embeds them."""

    def pieces(self, texts: Sequence[str], special_tokens: bool) -> list[list[Piece]]:
        """Return every token of each text, without truncation.

        With `special_tokens`, the lists include the special tokens that the tokenizer adds.
        """

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Decode token ids of the vocabulary to a text."""

    def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
        """Embed one padded batch. Row i of the result belongs to text i.

        `alone` means that no other batch runs, or that the batch overtakes the batches of all streams.
        """

    def embed_tokens(self, batch: Sequence[Tokens], *, alone: bool = False) -> list[Floats]:
        """Return the vectors (L, H) of the tokens of each text, not normalised. `token_dim` must not be None."""


@dataclass(frozen=True)
class EngineOptions(base.Options):
    """Resources and precision of an engine. With None, the engine chooses the value."""

    precision: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> EngineOptions:
        """Return the options in `settings`. By default an engine has as many threads as the CPU quota allows."""
        precision = None if settings.precision == "auto" else settings.precision
        return cls(settings.device, settings.threads or cpus.available(), precision)


@dataclass(frozen=True)
class Model:
    """Facts about a model before its weights are read, and functions to load it."""

    manifest: Manifest
    load: Callable[[EngineOptions], Engine]
    check: Callable[[EngineOptions], None] = lambda _: None
    """Function that quickly raises EngineError if `load` would certainly fail on this machine."""
    report: bytes | None = None
    """The promotion report as JSON."""
    report_page: bytes | None = None
    """The promotion report as HTML."""
    int8_limit: float | None = None
    """Calibrated range of int8 output. None if the bundle was not calibrated."""
    label: str = ""
    """Name of a cross-encoder's output."""
    matryoshka: Collection[int] = ()
    """Numbers of dimensions for which the model was trained (Matryoshka)."""
