"""Reranking of the first hits of a search with a slower and more precise method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from serving.corpora.search import Hit, SearchOptions, SearchResult, shown
from serving.inference.embedder import Embedder
from serving.inference.embeddings import AS_QUERIES
from serving.inference.relevance import Method, relevance


@dataclass(frozen=True)
class Reranking:
    """Options for reranking in a search."""

    method: Method
    candidates: int
    """Number of first hits that are reranked. Other hits are not returned."""
    model: str | None = None
    """Name of the cross-encoder. None means the first cross-encoder."""


def first_stage(options: SearchOptions, reranking: Reranking) -> SearchOptions:
    return replace(options, k=reranking.candidates, offset=0, min_score=None)


async def reranked(
    found: SearchResult, queries: Sequence[str], options: SearchOptions, reranking: Reranking, embedder: Embedder
) -> SearchResult:
    """Score the hits of each query with `embedder`, sort them, and return the page that `options` describes."""
    pages = []
    for query, hits in zip(queries, found.hits, strict=True):
        ordered: list[Hit] = []
        if hits:
            texts = [hit.text for hit in hits]
            scored = await relevance(embedder, query, texts, AS_QUERIES, "rerank.candidates", method=reranking.method)
            order = np.argsort(-scored.scores, kind="stable").tolist()  # hits of equal scores keep their order
            scores = scored.bounded.tolist()
            ordered = [hits[i]._replace(score=scores[i], seen=seen) for seen, i in enumerate(order, start=1)]
        good = [hit for hit in ordered if options.min_score is None or shown(hit.score) >= options.min_score]
        pages.append(good[options.offset : options.offset + options.k])
    return replace(found, hits=pages)
