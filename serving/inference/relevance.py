"""Relevance scores of texts for a query.

There are three methods: the cosine of two text vectors, late interaction between token vectors, and a cross-encoder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from models.bundle.tokenizer import Tokens
from models.runtimes.base import Floats
from serving.inference.embedder import Embedder
from serving.inference.embeddings import Computed, EmbedOptions

Method = Literal["cosine", "late_interaction", "cross_encoder"]
MOST_COMPONENTS = 1 << 26
"""Maximum number of components in all token vectors of a request. In float32, they have 256 MB."""
DECIMALS = 6
"""Number of decimals to which scores are rounded, as in searches."""
MIN_NORM = 1e-12
"""Lower bound of a vector's length before a division. It keeps zero vectors zero."""


@dataclass(frozen=True)
class Relevance:
    """Scores of N texts for a query."""

    scores: Floats
    """(N,) scores, rounded to `DECIMALS`. Equal texts have equal scores."""
    computed: Computed
    method: Method

    @property
    def bounded(self) -> Floats:
        """Scores in a fixed range.

        A cross-encoder's scores are the sigmoid of its logits, from 0 to 1. Other scores are from -1 to 1.
        """
        return squashed(self.scores) if self.method == "cross_encoder" else self.scores


def squashed(scores: Floats) -> Floats:
    """Return the sigmoid of the scores."""
    sigmoid: Floats = (1 / (1 + np.exp(-scores.astype(np.float64)))).astype(np.float32)
    return sigmoid


async def relevance(
    embedder: Embedder, query: str, texts: Sequence[str], options: EmbedOptions, field: str, *, method: Method
) -> Relevance:
    """Score N texts for a query.

    In error messages, `field` names the texts. An encoder uses the prompts of its bundle for queries and documents,
    unless `options` has a prompt.
    """
    if method == "cross_encoder":
        scores, computed = await embedder.score([(query, text) for text in texts], options, field)
        return Relevance(scores.round(DECIMALS), computed, method)
    inputs, prompts = [query, *texts], embedder.preparation.prompts.of_a_search(len(texts), options)

    def at(i: int) -> str:
        return f"{field}.{i - 1}" if i else "query"

    if method == "late_interaction":
        vectors = await embedder.embed_tokens(
            inputs, options, field, at, most=MOST_COMPONENTS, beside=1, prompts=prompts
        )
        parts = vectors.vectors, vectors.norms, vectors.texts, embedder.preparation.special_ids
        return Relevance(await asyncio.to_thread(late_interaction, *parts), vectors, method)
    made = await embedder.embed(inputs, options, field, at, beside=1, prompts=prompts)
    cosines = np.vecdot(made.vectors[1:], made.vectors[0]).round(DECIMALS)  # computed in the same way as in searches
    return Relevance(np.clip(cosines, -1, 1), made, method)


def late_interaction(vectors: Floats, norms: Floats, texts: Sequence[Tokens], special: Sequence[int]) -> Floats:
    """Return the late-interaction scores (N,) of N texts for a query.

    `texts` has the tokens of the query, followed by the tokens of each text. `vectors` (T, H) has the vectors of all
    these tokens, and `norms` (T,) has their lengths.

    The score is ColBERT's MaxSim (Khattab and Zaharia, 2020): each token of the query is compared with its most similar
    token of the text, by cosine. The score is the mean over the query's tokens instead of their sum, so it is between
    -1 and 1. In the query and in each text, tokens with an id in `special` are ignored, unless there are no other
    tokens.
    """
    counts = [~np.isin(tokens.ids, special) for tokens in texts]
    counts = [kept if kept.any() else ~kept for kept in counts]
    unit = (vectors / np.maximum(norms, MIN_NORM)[:, None])[np.concatenate(counts)]
    ends = np.cumsum([kept.sum() for kept in counts])
    query = unit[: ends[0]]
    # The texts are compared one by one, because the cosines of all their tokens could take gigabytes.
    best = [(query @ unit[start:end].T).max(axis=1).mean() for start, end in pairwise(ends)]
    return np.array(best, dtype=np.float32).round(DECIMALS)
