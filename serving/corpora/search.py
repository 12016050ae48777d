"""Search of one corpus: by meaning (dense), by words (lexical), or by both (hybrid)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from models.runtimes.base import Floats
from serving.corpora.filters import Filter
from serving.corpora.indexes.exact import DECIMALS, best, rounded, union
from serving.corpora.indexes.live import LiveIndex
from serving.corpora.indexes.state import Report
from serving.corpora.ports import MAX_MARKED, Corpus, Document, Keys, Passage, Ranking, Size, Span, Store
from serving.errors import Conflict, Invalid, TooLarge

# Fusion of a dense and a lexical ranking of the same passages.

RRF_CONSTANT = 60
"""The constant of Cormack, Clarke and Büttcher 2009, "Reciprocal rank fusion outperforms Condorcet and …"."""
Fusion = Literal["rrf", "weighted"]


def fuse(dense: Ranking, lexical: Ranking, k: int, fusion: Fusion, alpha: float) -> Ranking:
    """Return the best `k` of both rankings. `alpha` in [0, 1] is the weight of `dense` in a weighted sum.

    `rrf`: the sum of 1 / (60 + rank), with ranks from 1, over the rankings that contain the passage. `weighted`: the
    weighted sum of scores. Scores of each ranking are first scaled to [0, 1], from its last passage to its first. A
    passage that is missing in a ranking scores 0 there.
    """
    keys: Keys = union(dense.keys, lexical.keys)
    scores = np.zeros(len(keys))
    for ranking, weight in ((dense, alpha), (lexical, 1 - alpha)):
        part = _reciprocal(ranking) if fusion == "rrf" else weight * _scaled(ranking)
        scores[np.searchsorted(keys, ranking.keys)] += part
    return best(keys, rounded(scores.astype(np.float32)), k)


def continued(ranking: Ranking, others: Ranking, k: int) -> Ranking:
    """Return the first `k` of `ranking`, extended by the passages of `others` that it lacks, with score 0."""
    behind = others.keys[~np.isin(others.keys, ranking.keys)]
    scores = np.concatenate([ranking.scores, np.zeros(len(behind), np.float32)])
    return Ranking(np.concatenate([ranking.keys, behind])[:k], scores[:k])


def _reciprocal(ranking: Ranking) -> Floats:
    ranks = 1.0 / (RRF_CONSTANT + 1 + np.arange(len(ranking.keys)))
    return ranks.astype(np.float32)


def _scaled(ranking: Ranking) -> Floats:
    """Return the scores scaled to [0, 1]. Equal scores become 1, because being found at all is evidence."""
    scores = ranking.scores.astype(np.float32)
    if not len(scores):
        return scores
    low, high = scores.min(), scores.max()
    scaled: Floats = (scores - low) / (high - low) if high > low else np.ones_like(scores)
    return scaled


# Pages of a corpus's documents. Each page begins where the previous one ended, within one generation.


class DocumentCursor(NamedTuple):
    """The end of a page: the key of its last document, in listing order."""

    generation: str
    key: int


class DocumentPage(NamedTuple):
    """A page of documents."""

    documents: list[Document]
    following: DocumentCursor | None
    """The end of this page, or None on the last page."""
    total: int
    """Documents on all pages."""
    warnings: Sequence[str]
    """Warnings of `Store.unmatched`."""


def check_generation(seen: str, now: str) -> None:
    """Check that a cursor belongs to the corpus's current generation, because keys change between generations.

    Raises:
        Invalid: since the cursor was made, the corpus was recreated, restored or embedded again.
    """
    if seen != now:
        raise Invalid(
            "of the corpus as it was before it was deleted, restored or embedded again: begin with the first page",
            field="cursor",
        )


# Descriptions of corpora, and the choice of their encoders.


@dataclass(frozen=True)
class Description:
    """A corpus, its size, its index, and its damage, if any."""

    corpus: Corpus
    size: Size
    index: Report | None
    """The report of the index; None before the first document."""
    damage: str | None = None
    """The reason why the corpus can't be served, if it can't."""


class Stale(Conflict):
    """No served encoder embedded this corpus."""


def is_stale(corpus: Corpus, size: Size, served: Collection[str]) -> bool:
    """Return whether the corpus has documents that no bundle of the fingerprints `served` embedded."""
    return size.documents > 0 and corpus.fingerprint not in served


def encoder(corpus: Corpus, size: Size, served: Sequence[str]) -> str:
    """Return the fingerprint of the served encoder that embeds the texts and queries of the corpus.

    This is the encoder that embedded the corpus. If that encoder is not served and the corpus is empty, it is the first
    served encoder.

    Raises:
        Stale: the corpus was embedded by a bundle that is not served. Vectors of different encoders can't be compared.
    """
    if is_stale(corpus, size, served):
        raise Stale(
            f"corpus {corpus.name!r} was embedded by an encoder (fingerprint {str(corpus.fingerprint)[:12]}) that this "
            f"server does not serve"
        )
    return next((one for one in served if one == corpus.fingerprint), served[0])


Mode = Literal["dense", "lexical", "hybrid"]
DEEP = 2048
"""Depth in hits beyond which search is exact, because approximate indexes are made for the first hits."""
READ_TOGETHER = 1000
"""Hits whose passages are read in one step."""
READ_AT_ONCE = 64
"""Passages read between two checks of their total length."""
CANDIDATES = 1000
"""Passages of each ranking that a hybrid search fuses. It does not depend on the number of hits, because all pages must
come from the same fused ranking."""


MARKED_TOGETHER = 1_000_000
"""Maximum characters that one search highlights, which takes up to three seconds."""


class Query(NamedTuple):
    """A query: a text, a vector, or both."""

    text: str | None
    vector: Floats | None
    """(D,), of any length but zero."""


class Cursor(NamedTuple):
    """The end of a page of hits, where the next page begins."""

    generation: str
    """The generation of the corpus that the key belongs to."""
    seen: int
    """Hits on this page and those before it."""
    score: float
    key: int


class Hit(NamedTuple):
    """A passage found, with its scores and, where requested, its vector."""

    passage: Passage
    key: int
    seen: int
    """Hits up to this one, on its page and those before it."""
    score: float
    """Cosine of `dense`, BM25 of `lexical`, or the fused score of `hybrid`."""
    dense: float | None = None
    """The cosine, for a hybrid search."""
    lexical: float | None = None
    """The BM25 score. Only in a hybrid search, and only if the hit is among the best by words."""
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
    """The kind of index that was searched by meaning, if any."""
    truncated: int = 0
    """Queries that were cut to the model's length."""
    warnings: Sequence[str] = ()
    """Warnings of `Store.unmatched`."""

    def behind(self, hit: Hit) -> Cursor:
        """Return the place behind `hit`, the last hit of a page."""
        return Cursor(self.generation, hit.seen, hit.score, hit.key)


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


class _Ranked(NamedTuple):
    """A ranking. After a hybrid search it also has the dense and the lexical scores, by key."""

    ranking: Ranking
    dense: dict[int, float]
    lexical: dict[int, float]


def shown(score: float) -> float:
    """Round a score to the precision that hits show and `min_score` compares.

    BM25 has more decimals. The order of the hits depends on all of them.
    """
    return round(score, DECIMALS)


def find(
    store: Store, name: str, index: LiveIndex | None, queries: Sequence[Query], options: SearchOptions
) -> list[list[Hit]]:
    """Return the hits of each query in the corpus `name`. `index` is None if the corpus never contained a vector.

    Raises:
        TooLarge: the texts exceed `options.max_characters`, or the limit on highlighting.
    """
    if index is None:
        return [[] for _ in queries]
    search = _Search(store, name, index, options)
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
    return [_highlighted(store, name, hits, query.text or "") for hits, query in zip(found, queries, strict=True)]


def _too_large(options: SearchOptions) -> TooLarge:
    return TooLarge(f"the texts found are more than {options.max_characters} characters: ask for fewer hits")


def _highlighted(store: Store, name: str, hits: Sequence[Hit], query: str) -> list[Hit]:
    marked = store.highlights(name, [hit.text for hit in hits], query)
    return [hit._replace(highlights=spans) for hit, spans in zip(hits, marked, strict=True)]


def _together(rankings: Sequence[_Ranked]) -> Iterator[list[_Ranked]]:
    """Yield groups of rankings whose hits are read in one step."""
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


class _Search:
    def __init__(self, store: Store, name: str, index: LiveIndex, options: SearchOptions) -> None:
        self._store = store
        self._name = name
        self._index = index
        self._options = options
        dense = options.mode != "lexical"
        self._allowed = store.matching(name, options.where) if options.where and dense else None

    def ranked(self, queries: Sequence[Query]) -> list[_Ranked]:
        """Return the page of each query. Writes since the previous page may require a deeper search."""
        depth = self._options.k + self._options.offset + (self._options.after.seen if self._options.after else 0)
        found = self._rankings(queries, depth)
        return [self._page([query], ranked, depth) for query, ranked in zip(queries, found, strict=True)]

    def hits(self, rankings: Sequence[_Ranked]) -> list[list[Hit]]:
        keys = sorted({key for ranked in rankings for key in ranked.ranking.keys.tolist()})
        passages = self._passages(keys)
        vectors = self._vectors(keys) if self._options.with_vector else {}
        return [self._hits(ranked, passages, vectors) for ranked in rankings]

    def _passages(self, keys: Sequence[int]) -> dict[int, Passage]:
        """Read passages. Stop at the character limit, because a thousand documents may have a thousand megabytes."""
        passages: dict[int, Passage] = {}
        left = self._options.max_characters
        for start in range(0, len(keys), READ_AT_ONCE):
            some = self._store.passages(self._name, keys[start : start + READ_AT_ONCE])
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
            if options.mode == "hybrid" and options.after:  # by rank, because writes change fused scores
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
        """Fuse the dense and the lexical ranking. All further passages follow, by cosine.

        Every hit gets its cosine, even if only the words found it.
        """
        lexical = self._lexical(query, CANDIDATES)
        ranking = fuse(dense, lexical, depth, self._options.fusion, self._options.alpha)
        cosines = dict(zip(dense.keys.tolist(), dense.scores.tolist(), strict=True))
        if len(ranking.keys) < depth and len(dense.keys) == CANDIDATES:
            (others,) = self._index.search(_units([query]), depth, self._allowed, exact=True)
            ranking = continued(ranking, others, depth)
            cosines |= zip(others.keys.tolist(), others.scores.tolist(), strict=True)
        missing = [key for key in ranking.keys.tolist() if key not in cosines]
        unit = _units([query])[0]
        for key, vector in self._vectors(missing).items():
            cosines[key] = shown(float(vector @ unit))
        return _Ranked(ranking, cosines, dict(zip(lexical.keys.tolist(), lexical.scores.tolist(), strict=True)))

    def _dense(self, queries: Sequence[Query], depth: int) -> list[Ranking]:
        exact = self._options.exact or depth > DEEP
        return self._index.search(_units(queries), depth, self._allowed, exact=exact)

    def _lexical(self, query: Query, depth: int) -> Ranking:
        assert query.text is not None, "words are looked for only where the query has some"
        return self._store.words(self._name, query.text, depth, self._options.where)

    def _vectors(self, keys: Sequence[int]) -> dict[int, Floats]:
        found: dict[int, Floats] = {}
        for block, rows in self._store.vectors(self._name, keys) if keys else ():
            found.update(zip(block.tolist(), rows, strict=True))
        return found


def _units(queries: Sequence[Query]) -> Floats:
    """Return the (Q, D) vectors of `queries`, scaled to length 1."""
    given = np.array([query.vector for query in queries if query.vector is not None], dtype=np.float64)
    lengths = np.sqrt(np.vecdot(given, given))[:, None]
    lengths[lengths == 0] = 1
    unit: Floats = (given / lengths).astype(np.float32)
    return unit
