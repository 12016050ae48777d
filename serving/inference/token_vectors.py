"""Vectors of tokens, beside the vectors of texts: requests for them share the queue and its batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from models.bundle.tokenizer import Tokens
from models.runtimes.base import Embedded, Floats


@dataclass(frozen=True, slots=True)
class EachToken(Tokens):
    """Tokens of a text for which a caller wants a vector of each token, instead of one vector of the text."""


class Mixed(NamedTuple):
    """Output of a batch with `EachToken`: for each text a vector (D,), or the vectors (L, H) of its tokens."""

    vectors: Sequence[Floats]
    norms: Sequence[Floats]
    """The length of each vector."""


def places(texts: Sequence[Tokens]) -> Sequence[slice]:
    """Return the rows of each text's tokens in the answer to a request."""
    ends = np.cumsum([len(text) for text in texts]).tolist()
    return [slice(end - len(text), end) for end, text in zip(ends, texts, strict=True)]


def mixed(
    batch: Sequence[Tokens],
    embed: Callable[[Sequence[Tokens]], Embedded],
    embed_tokens: Callable[[Sequence[Tokens]], Sequence[Floats]],
) -> Mixed:
    """Run the texts of a batch by `embed`, and those of `EachToken` by `embed_tokens`."""
    each = [isinstance(tokens, EachToken) for tokens in batch]
    texts = [tokens for tokens, one in zip(batch, each, strict=True) if not one]
    whole = iter(zip(*embed(texts), strict=True) if texts else ())
    vectors = iter(embed_tokens([tokens for tokens, one in zip(batch, each, strict=True) if one]))
    found = [(own := next(vectors), np.linalg.norm(own, axis=1)) if one else next(whole) for one in each]
    return Mixed(*zip(*found, strict=True))
