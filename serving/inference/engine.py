"""Interface of an engine, facts about the model that the engine loads, and batches that need token vectors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from models import cpus
from models.bundle.bundle import Manifest
from models.bundle.tokenizer import Direction, Piece, TextPair, Tokens
from models.runtimes import base
from models.runtimes.choice import Choice
from serving.settings import Settings

Embedded = base.Embedded
Floats = base.Floats


class EngineError(RuntimeError):
    """The engine can't run on this machine, or can't run as the bundle requires.

    The message gives the reason and a remedy.
    """


class Engine(Protocol):
    """A loaded model.

    Up to `streams` threads call `embed` at the same time. On a CPU, one extra thread may call `embed` while all streams
    are busy. At any time, other threads may call the other methods, such as `tokenize`.
    """

    name: str
    precision: str
    device: str
    vocab_size: int
    streams: int
    """Maximum number of batches that the engine embeds at the same time."""
    batch_tokens: int
    """Best number of padded tokens in a batch. Larger batches do not increase the throughput."""
    length_step: int
    """Sequence lengths are padded to a multiple of this number of tokens."""
    choice: Choice
    """The runtime and precision in use, and the reason for this choice."""

    @property
    def token_dim(self) -> int | None:
        """Width of token vectors. None if the bundle's graph has no output for token vectors."""

    def tokenize(self, texts: Sequence[str], direction: Direction) -> list[Tokens]:
        """Return the tokens of each text, truncated to the model's maximum length on the side `direction`."""

    def tokenize_pairs(self, pairs: Sequence[TextPair], direction: Direction) -> list[Tokens]:
        """Return the tokens of each pair of texts. The two texts together are truncated to the model's maximum length.

        Only cross-encoders can process these tokens. Their `embed` computes a score for each pair.
        """

    def pieces(self, texts: Sequence[str], special_tokens: bool) -> list[list[Piece]]:
        """Return every token of each text, without truncation.

        With `special_tokens`, the lists include the special tokens that the tokenizer adds.
        """

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the text of token ids."""

    def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
        """Embed a padded batch. Row i of the result belongs to text i.

        With `alone`, the engine may use all threads for this batch. The caller sets `alone` for a batch of one text if
        no other batch runs or waits. The caller also sets it for each batch in the extra thread (see `Engine`).
        """

    def embed_tokens(self, batch: Sequence[Tokens], *, alone: bool = False) -> list[Floats]:
        """Return the token vectors (L, H) of each text, not normalised. `token_dim` must not be None."""


@dataclass(frozen=True)
class EngineOptions(base.Options):
    """Resources and precision of an engine. If an option is None, the engine chooses its value."""

    precision: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> EngineOptions:
        """Return the options in `settings`.

        By default, an engine has as many threads as the CPU quota allows.
        """
        precision = None if settings.precision == "auto" else settings.precision
        return cls(settings.device, settings.threads or cpus.available(), long_lived=True, precision=precision)


@dataclass(frozen=True)
class Model:
    """Facts about a model that are known before its weights are loaded, and the function that loads it."""

    manifest: Manifest
    load: Callable[[EngineOptions], Engine]
    check: Callable[[EngineOptions], None] = lambda _: None
    """Fast function that raises EngineError if `load` would certainly fail on this machine."""
    report: bytes | None = None
    """The promotion report as JSON."""
    report_page: bytes | None = None
    """The promotion report as HTML."""
    int8_limit: float | None = None
    """Calibrated range of int8 output. None for a bundle without calibration."""
    label: str = ""
    """Name of a cross-encoder's output. Empty for other models."""
    matryoshka: Collection[int] = ()
    """Numbers of dimensions for which the model had Matryoshka training."""


# Requests for token vectors use the same queue and the same batches as requests for text vectors.


@dataclass(frozen=True, slots=True)
class EachToken(Tokens):
    """Tokens of a text for which the caller wants one vector per token, instead of one vector for the text."""


class Mixed(NamedTuple):
    """Output of a batch in which some texts are `EachToken`, which asks for one vector per token.

    Such a text has token vectors (L, H). Any other text has one vector (D,).
    """

    vectors: Sequence[Floats]
    norms: Sequence[Floats]
    """Lengths of each text's vectors before normalisation."""


def places(texts: Sequence[Tokens]) -> Sequence[slice]:
    """Return one slice for each text. The slice selects the text's rows in an array of all texts' token vectors."""
    ends = np.cumsum([len(text) for text in texts]).tolist()
    return [slice(end - len(text), end) for end, text in zip(ends, texts, strict=True)]
