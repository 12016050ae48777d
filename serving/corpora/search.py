"""Search of one corpus: by meaning (dense), by words (lexical), or by both (hybrid)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import numpy as np

from models.runtimes.base import Floats
from serving.corpora.filters import Filter
from serving.corpora.indexes.exact import DECIMALS, best, rounded, union
from serving.corpora.indexes.live import LiveIndex
from serving.corpora.ports import MAX_MARKED, Keys, Passage, Ranking, Span, Store
from serving.errors import TooLarge

RRF_CONSTANT = 60
"""The constant of Cormack, Clarke and Büttcher 2009, "Reciprocal rank fusion outperforms Condorcet and …"."""
Fusion = Literal["rrf", "weighted"]
Mode = Literal["dense", "lexical", "hybrid"]
DEEP = 2048
"""Number of hits from which search is exact. Approximate indexes are tuned for the first hits."""
READ_TOGETHER = 1000
"""Maximum hits whose passages are read in one step."""
READ_AT_ONCE = 64
"""Number of passages read between two checks of their total length."""
CANDIDATES = 1000
"""Number of passages of each ranking that a hybrid search fuses. It does not depend on the requested number of hits,
because all pages must come from the same fused ranking."""
MARKED_TOGETHER = 1_000_000
"""Maximum characters that one search highlights, which takes up to three seconds."""


class Query(NamedTuple):
    """A query: a text, a vector, or both."""

    text: str | None
    vector: Floats | None
    """(D,) vector of nonzero length."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of a search: which hits to return, and how to find them."""

    k: int = 10
    offset: int = 0
    after: Cursor | None = None
    """The end of the previous page, if any; `offset` counts from there."""
    mode: Mode = "dense"
    fusion: Fusion = "rrf"
    alpha: float = 0.5
    exact: bool = False
    where: Filter | None = None
    min_score: float | None = None
    with_vector: bool = False
    highlight: bool = False
    max_characters: int | None = None
    """Maximum characters in the documents of all hits of a search, because each document is read whole."""


class Cursor(NamedTuple):
    """The end of a page of hits, where the next page begins."""

    generation: str
    """The generation of the corpus that the key belongs to."""
    seen: int
    """Number of hits on this page and all previous pages."""
    score: float
    key: int


class Hit(NamedTuple):
    """A passage found, with its scores and, where requested, its vector."""

    passage: Passage
    key: int
    seen: int
    """Number of hits up to and including this hit, on its page and all previous pages."""
    score: float
    """The cosine in a `dense` search, the BM25 score in a `lexical` search, or the fused score in a `hybrid` search."""
    dense: float | None = None
    """The cosine. None unless the search is hybrid."""
    lexical: float | None = None
    """The BM25 score. None unless the search is hybrid and the hit is in the lexical ranking."""
    vector: Floats | None = None
    highlights: Sequence[Span] = ()
    """Spans of the query's words in `text`, if requested."""

    @property
    def text(self) -> str:
        text, span = self.passage.document.text, self.passage.span
        return text if span is None else text[span.start : span.end]


@dataclass(frozen=True)
class SearchResult:
    """The answer to a search."""

    hits: list[list[Hit]]
    """Hits of each query, best first."""
    generation: str
    """The generation of the corpus that was searched."""
    index: str | None
    """The kind of vector index that was searched. None if no vectors were searched."""
    truncated: int = 0
    """Number of truncated queries."""
    warnings: Sequence[str] = ()
    """Warnings of `Store.unmatched`."""

    def behind(self, hit: Hit) -> Cursor:
        """Return the cursor of the page that follows `hit`."""
        return Cursor(self.generation, hit.seen, hit.score, hit.key)


class Searchable(Protocol):
    """A corpus that can be searched: rankings by meaning and by words, and the passages of a ranking's keys."""

    def filtered(self, where: Filter) -> Searchable:
        """Return the same corpus, restricted to the documents whose metadata match."""

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[Ranking]:
        """Return the best `k` passages by cosine for each row of (Q, D) `queries`, which are unit vectors."""

    def lexical(self, query: str, k: int) -> Ranking:
        """Return the best `k` passages by BM25; see `Store.words`."""

    def passages(self, keys: Sequence[int]) -> dict[int, Passage]:
        """Return the passages of the keys of rankings. Keys without a passage are left out."""

    def vectors(self, keys: Sequence[int]) -> dict[int, Floats]:
        """Return the (D,) vectors of the keys of rankings."""

    def highlights(self, texts: Sequence[str], query: str) -> list[list[Span]]:
        """Return for each of `texts` the spans that match words of `query`; see `Store.highlights`."""


@dataclass(frozen=True)
class IndexedCorpus:
    """A corpus of a local store, and its index."""

    store: Store
    name: str
    index: LiveIndex
    where: Filter | None = None

    def filtered(self, where: Filter) -> IndexedCorpus:
        return replace(self, where=where)

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[Ranking]:
        return self.index.search(queries, k, self._allowed, exact=exact)

    def lexical(self, query: str, k: int) -> Ranking:
        return self.store.words(self.name, query, k, self.where)

    def passages(self, keys: Sequence[int]) -> dict[int, Passage]:
        return self.store.passages(self.name, keys)

    def vectors(self, keys: Sequence[int]) -> dict[int, Floats]:
        found: dict[int, Floats] = {}
        for block, rows in self.store.vectors(self.name, keys) if keys else ():
            found.update(zip(block.tolist(), rows, strict=True))
        return found

    def highlights(self, texts: Sequence[str], query: str) -> list[list[Span]]:
        return self.store.highlights(self.name, texts, query)

    @cached_property
    def _allowed(self) -> Keys | None:
        return None if self.where is None else self.store.matching(self.name, self.where)


def find(corpus: Searchable, queries: Sequence[Query], options: SearchOptions) -> list[list[Hit]]:
    """Return the hits of each query.

    Raises:
        TooLarge: the texts exceed `options.max_characters`, or the limit on highlighting.
    """
    if options.where:
        corpus = corpus.filtered(options.where)
    search = _Search(corpus, options)
    found: list[list[Hit]] = []
    characters = 0
    for together in _together(search.ranked(queries)):
        for hits in search.hits(together):
            found.append(hits)
            characters += sum(len(hit.passage.document.text) for hit in hits)
        if options.max_characters is not None and characters > options.max_characters:
            raise _too_large(options)
    if not options.highlight:
        return found
    looked_at = sum(min(len(hit.text), MAX_MARKED) for hits in found for hit in hits)
    if looked_at > MARKED_TOGETHER:
        raise TooLarge(
            f"the texts found have {looked_at} characters to look at, more than {MARKED_TOGETHER}: ask for fewer hits",
            field="highlight",
        )
    return [_highlighted(corpus, hits, query.text or "") for hits, query in zip(found, queries, strict=True)]


def _too_large(options: SearchOptions) -> TooLarge:
    return TooLarge(f"the texts found are more than {options.max_characters} characters: ask for fewer hits")


def _highlighted(corpus: Searchable, hits: Sequence[Hit], query: str) -> list[Hit]:
    marked = corpus.highlights([hit.text for hit in hits], query)
    return [hit._replace(highlights=spans) for hit, spans in zip(hits, marked, strict=True)]


def _together(rankings: Sequence[_Ranked]) -> Iterator[list[_Ranked]]:
    """Yield groups of rankings. The hits of a group are read in one step."""
    together: list[_Ranked] = []
    hits = 0
    for ranked in rankings:
        together.append(ranked)
        hits += len(ranked.ranking.keys)
        if hits >= READ_TOGETHER:
            yield together
            together, hits = [], 0
    if together:
        yield together


class _Ranked(NamedTuple):
    """A ranking. After a hybrid search it also has the dense and the lexical scores, by key."""

    ranking: Ranking
    dense: dict[int, float]
    lexical: dict[int, float]


class _Search:
    def __init__(self, corpus: Searchable, options: SearchOptions) -> None:
        self._corpus = corpus
        self._options = options

    def ranked(self, queries: Sequence[Query]) -> list[_Ranked]:
        """Return the ranked page of hits for each query.

        If the page is not full because of writes since the previous page, search deeper.
        """
        depth = self._options.k + self._options.offset + (self._options.after.seen if self._options.after else 0)
        found = self._rankings(queries, depth)
        return [self._page([query], ranked, depth) for query, ranked in zip(queries, found, strict=True)]

    def hits(self, rankings: Sequence[_Ranked]) -> list[list[Hit]]:
        keys = sorted({key for ranked in rankings for key in ranked.ranking.keys.tolist()})
        passages = self._passages(keys)
        vectors = self._corpus.vectors(keys) if self._options.with_vector else {}
        return [self._hits(ranked, passages, vectors) for ranked in rankings]

    def _passages(self, keys: Sequence[int]) -> dict[int, Passage]:
        """Read passages by key.

        Raise `TooLarge` at the character limit, because a thousand documents may have a thousand megabytes.
        """
        passages: dict[int, Passage] = {}
        left = self._options.max_characters
        for start in range(0, len(keys), READ_AT_ONCE):
            some = self._corpus.passages(keys[start : start + READ_AT_ONCE])
            passages |= some
            if left is not None:
                left -= sum(len(passage.document.text) for passage in some.values())
                if left < 0:
                    raise _too_large(self._options)
        return passages

    def _hits(self, ranked: _Ranked, passages: dict[int, Passage], vectors: dict[int, Floats]) -> list[Hit]:
        keys, scores = ranked.ranking
        before = self._options.offset + (self._options.after.seen if self._options.after else 0)
        return [
            Hit(passage, key, seen, score, ranked.dense.get(key), ranked.lexical.get(key), vectors.get(key))
            for seen, (key, score) in enumerate(zip(keys.tolist(), scores.tolist(), strict=True), start=before + 1)
            if (passage := passages.get(key))
        ]

    def _page(self, query: Sequence[Query], ranked: _Ranked, depth: int) -> _Ranked:
        options = self._options
        while True:
            keys, scores = ranked.ranking
            whole = len(keys) < depth
            if options.mode == "hybrid" and options.after:  # skip by rank, because writes change fused scores
                keys, scores = keys[options.after.seen :], scores[options.after.seen :]
            elif options.after:
                score = options.after.score
                behind = (scores < score) | ((scores == score) & (keys > options.after.key))
                keys, scores = keys[behind], scores[behind]
            keys, scores = keys[options.offset :], scores[options.offset :]
            if len(keys) >= options.k or whole:
                keep = slice(0, options.k)
                if options.min_score is not None:
                    good = np.array([shown(score) >= options.min_score for score in scores.tolist()], dtype=bool)
                    keys, scores = keys[good], scores[good]
                return ranked._replace(ranking=Ranking(keys[keep], scores[keep]))
            depth *= 2
            (ranked,) = self._rankings(query, depth)

    def _rankings(self, queries: Sequence[Query], depth: int) -> list[_Ranked]:
        mode = self._options.mode
        if mode == "dense":
            return [_Ranked(ranking, {}, {}) for ranking in self._dense(queries, depth)]
        if mode == "lexical":
            return [_Ranked(self._lexical(query, depth), {}, {}) for query in queries]
        dense = self._dense(queries, CANDIDATES)
        return [self._fused(query, ranking, depth) for query, ranking in zip(queries, dense, strict=True)]

    def _fused(self, query: Query, dense: Ranking, depth: int) -> _Ranked:
        """Fuse the dense and the lexical ranking. Passages beyond the fused `CANDIDATES` follow by cosine.

        Every hit gets its cosine, even if only the lexical ranking contains the hit.
        """
        lexical = self._lexical(query, CANDIDATES)
        ranking = fuse(dense, lexical, depth, self._options.fusion, self._options.alpha)
        cosines = dict(zip(dense.keys.tolist(), dense.scores.tolist(), strict=True))
        if len(ranking.keys) < depth and len(dense.keys) == CANDIDATES:
            (others,) = self._corpus.dense(_units([query]), depth, exact=True)
            ranking = continued(ranking, others, depth)
            cosines |= zip(others.keys.tolist(), others.scores.tolist(), strict=True)
        missing = [key for key in ranking.keys.tolist() if key not in cosines]
        unit = _units([query])[0]
        for key, vector in self._corpus.vectors(missing).items():
            cosines[key] = shown(float(vector @ unit))
        return _Ranked(ranking, cosines, dict(zip(lexical.keys.tolist(), lexical.scores.tolist(), strict=True)))

    def _dense(self, queries: Sequence[Query], depth: int) -> list[Ranking]:
        exact = self._options.exact or depth > DEEP
        return self._corpus.dense(_units(queries), depth, exact=exact)

    def _lexical(self, query: Query, depth: int) -> Ranking:
        assert query.text is not None, "words are looked for only where the query has some"
        return self._corpus.lexical(query.text, depth)


def _units(queries: Sequence[Query]) -> Floats:
    """Return the (Q, D) vectors of `queries`, scaled to length 1."""
    given = np.array([query.vector for query in queries if query.vector is not None], dtype=np.float64)
    lengths = np.sqrt(np.vecdot(given, given))[:, None]
    lengths[lengths == 0] = 1
    unit: Floats = (given / lengths).astype(np.float32)
    return unit


def shown(score: float) -> float:
    """Round a score to the displayed precision, which `min_score` also compares.

    The order of hits by BM25 depends on the unrounded scores.
    """
    return round(score, DECIMALS)


# Fusion of a dense and a lexical ranking of the same passages.


def fuse(dense: Ranking, lexical: Ranking, k: int, fusion: Fusion, alpha: float) -> Ranking:
    """Return the best `k` of both rankings. `alpha` in [0, 1] is the weight of `dense` in a weighted sum.

    `rrf`: the sum of 1 / (60 + rank), with ranks from 1, over the rankings that contain the passage. `weighted`: the
    weighted sum of scores. The scores of each ranking are first scaled to [0, 1]: its last passage gets 0, and its
    first passage gets 1. A passage that is missing in a ranking scores 0 there.
    """
    keys: Keys = union(dense.keys, lexical.keys)
    scores = np.zeros(len(keys))
    for ranking, weight in ((dense, alpha), (lexical, 1 - alpha)):
        part = _reciprocal(ranking) if fusion == "rrf" else weight * _scaled(ranking)
        scores[np.searchsorted(keys, ranking.keys)] += part
    return best(keys, rounded(scores.astype(np.float32)), k)


def continued(ranking: Ranking, others: Ranking, k: int) -> Ranking:
    """Return the first `k` passages of `ranking`, followed by the missing passages of `others` with score 0."""
    behind = others.keys[~np.isin(others.keys, ranking.keys)]
    scores = np.concatenate([ranking.scores, np.zeros(len(behind), np.float32)])
    return Ranking(np.concatenate([ranking.keys, behind])[:k], scores[:k])


def _reciprocal(ranking: Ranking) -> Floats:
    ranks = 1.0 / (RRF_CONSTANT + 1 + np.arange(len(ranking.keys)))
    return ranks.astype(np.float32)


def _scaled(ranking: Ranking) -> Floats:
    """Return the scores scaled to [0, 1]. If all scores are equal, all become 1, because a match is evidence."""
    scores = ranking.scores.astype(np.float32)
    if not len(scores):
        return scores
    low, high = scores.min(), scores.max()
    scaled: Floats = (scores - low) / (high - low) if high > low else np.ones_like(scores)
    return scaled
