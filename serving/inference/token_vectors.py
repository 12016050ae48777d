"""Requests for token vectors. They use the same queue and the same batches as requests for text vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from models.bundle.tokenizer import Tokens
from models.runtimes.base import Embedded, Floats


@dataclass(frozen=True, slots=True)
class EachToken(Tokens):
    """Tokens of a text for which the caller wants one vector per token, instead of one vector for the text."""


class Mixed(NamedTuple):
    """Output of a batch that contains `EachToken` texts.

    Each text has either one vector (D,) or token vectors (L, H).
    """

    vectors: Sequence[Floats]
    norms: Sequence[Floats]
    """Lengths of each text's vectors before normalisation."""


def places(texts: Sequence[Tokens]) -> Sequence[slice]:
    """Return a slice for each text, which selects its rows in the concatenated token vectors."""
    ends = np.cumsum([len(text) for text in texts]).tolist()
    return [slice(end - len(text), end) for end, text in zip(ends, texts, strict=True)]


def mixed(
    batch: Sequence[Tokens],
    embed: Callable[[Sequence[Tokens]], Embedded],
    embed_tokens: Callable[[Sequence[Tokens]], Sequence[Floats]],
) -> Mixed:
    """Embed a batch: `EachToken` texts with `embed_tokens`, and all other texts with `embed`."""
    each = [isinstance(tokens, EachToken) for tokens in batch]
    texts = [tokens for tokens, one in zip(batch, each, strict=True) if not one]
    whole = iter(zip(*embed(texts), strict=True) if texts else ())
    vectors = iter(embed_tokens([tokens for tokens, one in zip(batch, each, strict=True) if one]))
    found = [(own := next(vectors), np.linalg.norm(own, axis=1)) if one else next(whole) for one in each]
    return Mixed(*zip(*found, strict=True))
