"""Options and results of an embedding request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.bundle import quantization
from models.bundle.bundle import Manifest
from models.bundle.tokenizer import Direction
from models.runtimes.base import Floats
from serving.operations.metrics import Timing

Inputs = Sequence[str] | Sequence[Sequence[int]]
"""Texts, or the token ids of each text."""
Role = Literal["search_query", "search_document", "classification", "clustering"]
"""Purpose of an embedding, as Cohere's `input_type` names it."""
Encoding = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Options that decide how texts become vectors."""

    normalize: bool = True
    truncate: bool = True
    direction: Direction = "right"
    """The side on which a text is cut."""
    prompt: str | None = None
    """Text put before every input. The empty string also overrides the server's default prompt."""
    prompt_name: str | None = None
    """Key of one of the bundle's prompts."""
    role: Role | None = None
    """Role of the texts. It selects the bundle's prompt, if there is one and the caller names no prompt."""
    by_the_bundle: bool = False
    """Whether to ignore the server's default prompt. Stored vectors must not depend on how the server was started."""
    dimensions: int | None = None
    """Leading dimensions to keep, cut before normalising. None keeps all."""
    dimensions_field: str = "dimensions"
    """Name of the `dimensions` field in the caller's request."""
    calibrated: bool = False
    """Whether the answer will be int8 or uint8. The bundle must then have a calibrated range."""


AS_THEY_ARE = EmbedOptions(prompt="")
"""Options for texts without any prompt."""
AS_QUERIES = EmbedOptions(role="search_query", by_the_bundle=True)
"""Options for queries of corpora."""
AS_DOCUMENTS = EmbedOptions(role="search_document", by_the_bundle=True)
"""Options for passages of corpora."""


@dataclass(frozen=True, kw_only=True)
class Embeddings:
    """Result of an embedding request."""

    vectors: Floats
    """(N, D), finite."""
    unit: Floats
    """(N, dimensions of the encoder), unit vectors from which codes are made."""
    int8_limit: float | None
    characters: int
    """Characters of the texts as they were sent, or the number of token ids."""
    tokens: int
    """Embedded tokens, including special tokens."""
    truncated: int
    """Number of texts that were cut."""
    timing: Timing
    device: str
    warning: str | None
    """Advice for callers who asked for few dimensions."""
    manifest: Manifest
    """Manifest of the encoder that made all vectors."""

    def numbers(self, encoding: Encoding) -> NDArray[np.float32] | NDArray[np.uint8] | NDArray[np.int8]:
        """Return the vectors (N, D), or codes of the unit vectors cut to D dimensions.

        Codes of bits have the shape (N, ⌈D / 8⌉), others (N, D).
        """
        if encoding in ("float", "base64"):
            return self.vectors
        unit = self.unit[:, : self.vectors.shape[1]]
        if encoding == "binary":
            return quantization.binary(unit)
        if encoding == "ubinary":
            return quantization.ubinary(unit)
        assert self.int8_limit, "EmbedOptions.calibrated"
        quantized = quantization.int8 if encoding == "int8" else quantization.uint8
        return quantized(unit, self.int8_limit)


def finished(vectors: Floats, norms: Floats, options: EmbedOptions) -> Floats:
    """Cut and scale unit vectors (N, D) with original norms (N,) as the options say."""
    dimensions = options.dimensions or vectors.shape[1]
    if dimensions < vectors.shape[1]:
        vectors = vectors[:, :dimensions]
        if options.normalize:
            lengths: Any = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    if not options.normalize:
        vectors = vectors * norms[:, None]
    return np.ascontiguousarray(vectors, dtype=np.float32)
