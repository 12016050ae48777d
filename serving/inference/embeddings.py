"""Options and results of an embedding request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.bundle import quantization
from models.bundle.bundle import Manifest
from models.bundle.tokenizer import Direction, Tokens
from models.runtimes.base import Floats
from serving.operations.metrics import Timing

Inputs = Sequence[str] | Sequence[Sequence[int]]
"""Texts, or the token ids of each text."""
Role = Literal["search_query", "search_document", "classification", "clustering"]
"""Role of a text. The values are those of Cohere's `input_type`."""
Encoding = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Options that decide how texts become vectors."""

    normalize: bool = True
    truncate: bool = True
    direction: Direction = "right"
    """The side on which a long text is truncated."""
    prompt: str | None = None
    """Prompt that is put before every text. An empty string overrides the server's default prompt."""
    prompt_name: str | None = None
    """Name of one of the bundle's prompts."""
    role: Role | None = None
    """Role of the texts. The role selects one of the bundle's prompts. If the bundle has no prompt for the role, the
    texts get no prompt. A role overrides the server's default prompt, so that the vectors of corpora depend only on the
    bundle. `prompt` and `prompt_name` override the role."""
    dimensions: int | None = None
    """Number of leading dimensions to return. Vectors are truncated first and normalised afterwards. None returns all
    dimensions."""
    dimensions_field: str = "dimensions"
    """Name of the field for `dimensions` in the request, for error messages."""
    calibrated: bool = False
    """True if the vectors will be quantised to int8 or uint8. Quantisation needs a bundle with a calibrated range."""


AS_THEY_ARE = EmbedOptions(prompt="")
"""Options that embed texts without a prompt."""
AS_QUERIES = EmbedOptions(role="search_query")
"""Options for queries of corpora."""
AS_DOCUMENTS = EmbedOptions(role="search_document")
"""Options for passages of corpora."""


@dataclass(frozen=True, kw_only=True)
class Computed:
    """Facts about the computation of an answer."""

    characters: int
    """Number of characters in the texts of the request. For token ids, the number of ids."""
    tokens: int
    """Number of tokens that the model has read, including special tokens."""
    truncated: int
    """Number of truncated texts."""
    timing: Timing
    device: str
    warning: str | None
    """`NOT_MATRYOSHKA` if the encoder was not trained for the requested dimensions, else None."""
    manifest: Manifest
    """Manifest of the model that computed the whole answer."""


@dataclass(frozen=True, kw_only=True)
class TokenEmbeddings(Computed):
    """Token vectors of N texts."""

    vectors: Floats
    """(T, H) finite vectors of all tokens in order, not normalised."""
    norms: Floats
    """(T,) lengths of the vectors."""
    texts: Sequence[Tokens]
    """The tokens of each text."""

    @property
    def by_text(self) -> list[Floats]:
        """Token vectors of each text, of shape (L, H) for a text of L tokens."""
        return np.split(self.vectors, np.cumsum([len(tokens) for tokens in self.texts])[:-1])


@dataclass(frozen=True, kw_only=True)
class Embeddings(Computed):
    """Result of a request for embeddings."""

    vectors: Floats
    """(N, D) finite vectors, truncated and scaled as the request asks."""
    unit: Floats
    """Unit vectors of shape (N, dimensions of the encoder). Integer and binary encodings are computed from these
    vectors."""
    int8_limit: float | None

    def numbers(self, encoding: Encoding) -> NDArray[np.float32] | NDArray[np.uint8] | NDArray[np.int8]:
        """Return the N vectors of D dimensions in an encoding.

        The result has the shape (N, ⌈D / 8⌉) for binary encodings, which pack 8 dimensions into a byte, and (N, D) for
        all other encodings. Integer and binary encodings are computed from the first D components of `unit`.
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
    """Truncate and scale unit vectors (N, D) as the options ask. `norms` (N,) are the lengths before normalisation."""
    dimensions = options.dimensions or vectors.shape[1]
    if dimensions < vectors.shape[1]:
        vectors = vectors[:, :dimensions]
        if options.normalize:
            lengths: Any = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    if not options.normalize:
        vectors = vectors * norms[:, None]
    return np.ascontiguousarray(vectors, dtype=np.float32)
