"""What is asked of an encoder besides the texts, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models import codes
from models.bundle import Manifest
from models.tokenizer import Direction
from serving.ports import Floats

Inputs = Sequence[str] | Sequence[Sequence[int]]
"""Texts, or the token ids of each."""
Role = Literal["search_query", "search_document", "classification", "clustering"]
"""What a text is embedded for, as Cohere's `input_type` names it."""
Encoding = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """How texts become vectors."""

    normalize: bool = True
    truncate: bool = True
    direction: Direction = "right"
    """The side that is cut."""
    prompt: str | None = None
    """Put before every text; the empty one keeps the server's default away."""
    prompt_name: str | None = None
    """The key of one of the bundle's."""
    role: Role | None = None
    """Takes the bundle's prompt for it, if there is one and the caller names none."""
    by_the_bundle: bool = False
    """Whether the server's default prompt stays away: vectors that are kept don't depend on how it was started."""
    dimensions: int | None = None
    """Leading dimensions to keep, cut before normalising; None keeps all."""
    dimensions_field: str = "dimensions"
    """What the caller calls them."""
    calibrated: bool = False
    """Whether the answer will be asked for int8 or uint8, which the bundle must have a range for."""


AS_THEY_ARE = EmbedOptions(prompt="")
"""Texts alone."""
AS_QUERIES = EmbedOptions(role="search_query", by_the_bundle=True)
"""The queries of corpora."""
AS_DOCUMENTS = EmbedOptions(role="search_document", by_the_bundle=True)
"""The passages of corpora."""


@dataclass(frozen=True)
class Timing:
    """Seconds that a request took, and where."""

    tokenization: float
    queue: float
    """Until the first of its texts reached the engine."""
    inference: float
    """From then until the last was embedded; its other texts may have waited in between."""
    total: float

    @classmethod
    def between(cls, began: float, tokenized: float, begun: float, done: float) -> Timing:
        """The moments at which it came, waited for the engine, reached it and was done."""
        return cls(tokenized - began, begun - tokenized, done - begun, done - began)


@dataclass(frozen=True, kw_only=True)
class Embeddings:
    """The answer to a request."""

    vectors: Floats
    """(N, D), finite."""
    unit: Floats
    """(N, D of the encoder), unit vectors: what codes are made of."""
    int8_limit: float | None
    characters: int
    """Of the texts as they were sent, or token ids."""
    tokens: int
    """Tokens embedded, special ones included."""
    truncated: int
    """Texts that were cut."""
    timing: Timing
    device: str
    warning: str | None
    """What a caller who asked for few dimensions should know."""
    manifest: Manifest
    """Of the encoder that made all of them."""

    def numbers(self, encoding: Encoding) -> NDArray[np.float32] | NDArray[np.uint8] | NDArray[np.int8]:
        """The vectors, or codes of the unit vectors cut to as many dimensions: (N, D), of bits (N, ⌈D / 8⌉)."""
        if encoding in ("float", "base64"):
            return self.vectors
        unit = self.unit[:, : self.vectors.shape[1]]
        if encoding == "binary":
            return codes.binary(unit)
        if encoding == "ubinary":
            return codes.ubinary(unit)
        assert self.int8_limit, "EmbedOptions.calibrated"
        return codes.int8(unit, self.int8_limit) if encoding == "int8" else codes.uint8(unit, self.int8_limit)


def finished(vectors: Floats, norms: Floats, options: EmbedOptions) -> Floats:
    """Unit vectors (N, D) and the lengths (N,) they had, as wide and as long as the caller wants them."""
    dimensions = options.dimensions or vectors.shape[1]
    if dimensions < vectors.shape[1]:
        vectors = vectors[:, :dimensions]
        if options.normalize:
            lengths: Any = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    if not options.normalize:
        vectors = vectors * norms[:, None]
    return np.ascontiguousarray(vectors, dtype=np.float32)
