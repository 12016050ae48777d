"""Search of one corpus: by meaning (dense), by words (lexical), or by both (hybrid)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from models.runtimes.base import Floats
from serving.corpora import arranging
from serving.corpora.arranging import Fusion, continued, fuse, scaled_to_one, value_at
from serving.corpora.filters import ID, All, Filter, In, Not, texts_at
from serving.corpora.indexes.exact import DECIMALS
from serving.corpora.ports import MAX_MARKED, Ranking, Searchable
from serving.corpora.values import NO_OPTIONS, Document, Passage, Scalar, Sort, Span, WordOptions
from serving.errors import Invalid, TooLarge

NONE: Mapping[int, Any] = MappingProxyType({})
Mode = Literal["dense", "lexical", "hybrid"]
DEEPEST = 16_000
"""Maximum number of passages that a search examines to find enough groups."""
DEEP = 2048
"""Maximum number of hits of an approximate search. Searches for more hits are exact, because approximate indexes are
tuned for fewer hits."""
READ_TOGETHER = 1000
"""Maximum number of hits whose passages are read in one step."""
READ_AT_ONCE = 64
"""Number of passages read between two checks of their total length."""
CANDIDATES = 1000
"""Number of passages of each ranking that a hybrid search fuses. The number does not depend on the requested number of
hits, because all pages must come from the same fused ranking."""
MARKED_TOGETHER = 1_000_000
"""Maximum number of characters in which one search highlights words. This takes up to three seconds."""

FEWER = "ask for fewer hits or, with rerank, fewer candidates"
"""Advice in the error for a search that is too large. With `rerank`, every candidate is a hit of the search."""


class Examples(NamedTuple):
    """Ids of documents that hits should resemble (`positive`), and of documents that they should not (`negative`)."""

    positive: Sequence[str]
    negative: Sequence[str] = ()


class Query(NamedTuple):
    """A query: a text, a vector, both, or examples."""

    text: str | None
    vector: Floats | None = None
    """Vector (D,) that is not zero."""
    like: Examples | None = None


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of a search, which determine the hits, their order and the method of the search."""

    k: int = 10
    offset: int = 0
    after: Cursor | None = None
    """End of the previous page, if any. `offset` counts from the end of that page."""
    mode: Mode = "dense"
    fusion: Fusion = "rrf"
    alpha: float = 0.5
    exact: bool = False
    where: Filter | None = None
    min_score: float | None = None
    with_vector: bool = False
    highlight: bool = False
    words: WordOptions = NO_OPTIONS
    sort: Sequence[Sort] = ()
    diversity: float = 0.0
    """Weight of the difference from other hits, in [0, 1]. See `arranging.diverse`."""
    group_by: str | None = None
    """Path of the metadata field whose values group the hits. Each group has up to `group_size` hits, and `k` is the
    number of groups."""
    group_size: int = 1
    explain: bool = False
    max_characters: int | None = None
    """Maximum number of characters in the documents of all hits together. The search reads each of these documents
    completely, and raises `TooLarge` above the maximum."""

    @property
    def arranged(self) -> bool:
        """True if hits are sorted, diversified or grouped. See `arranging`."""
        return bool(self.sort or self.diversity or self.group_by)


class Cursor(NamedTuple):
    """The end of a page of hits, where the next page begins."""

    generation: str
    seen: int
    """Number of hits on this page and all previous pages."""
    score: float
    key: int


class FieldHighlights(NamedTuple):
    """A string in a searched metadata field, with the spans of the query's words."""

    field: str
    text: str
    highlights: Sequence[Span]


class Hit(NamedTuple):
    """A passage that was found, with its scores and, if requested, its vector."""

    passage: Passage
    key: int
    seen: int
    """Number of hits up to and including this hit, on its page and all previous pages."""
    score: float
    """The cosine in a `dense` search, the BM25 score in a `lexical` search, or the fused score in a `hybrid` search."""
    dense: float | None = None
    """Cosine similarity in a hybrid search. None in other searches."""
    lexical: float | None = None
    """The BM25 score, if the search is hybrid and the hit is in the lexical ranking. Otherwise None."""
    vector: Floats | None = None
    highlights: Sequence[Span] = ()
    """Spans of the query's words in `text`, if requested."""
    field_highlights: Sequence[FieldHighlights] | None = None
    """Strings with words of the query, from the searched fields. None if highlights were not requested, or if no fields
    are searched."""
    corpus: str | None = None
    """Name of the corpus, in a search of several corpora."""
    group: Scalar = None
    """Value of the field that `group_by` names."""
    ranks: tuple[int | None, int | None] = (None, None)
    """Ranks in the dense and in the lexical ranking, from 1, if requested by `explain`."""

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
    index: str | None
    """The kind of vector index that was searched. None if no vectors were searched."""
    truncated: int = 0
    """Number of truncated queries."""
    warnings: Sequence[str] = ()
    """Warnings of `Store.unmatched`."""

    def behind(self, hit: Hit) -> Cursor:
        return Cursor(self.generation, hit.seen, hit.score, hit.key)


def merged(found: Mapping[str, SearchResult], options: SearchOptions) -> SearchResult:
    """Merge the hits of several corpora by score. Hits of equal score are in the order of the corpora."""
    hits = []
    for of_query in zip(*(result.hits for result in found.values()), strict=True):
        ordered = [hit._replace(corpus=name) for name, own in zip(found, of_query, strict=True) for hit in own]
        ordered.sort(key=lambda hit: -hit.score)
        hits.append(ordered[options.offset : options.offset + options.k])
    kinds = {result.index for result in found.values()}
    return SearchResult(
        hits,
        generation="",
        index=kinds.pop() if len(kinds) == 1 else "mixed",
        truncated=max(result.truncated for result in found.values()),
        warnings=[f"{name}: {warning}" for name, result in found.items() for warning in result.warnings],
    )


def find(corpus: Searchable, queries: Sequence[Query], options: SearchOptions) -> list[list[Hit]]:
    """Return the hits of each query.

    Raises:
        TooLarge: the documents of the hits have more than `options.max_characters` characters, or highlighting would
            search more than `MARKED_TOGETHER` characters.
        Invalid: an example is not in the corpus, or the examples cancel each other out.
    """
    if queries and queries[0].like:
        queries, options = resembling(corpus, queries[0].like, options)
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
    searched = corpus.searched_fields()
    looked_at = sum(
        min(len(hit.text), MAX_MARKED) + sum(len(text) for _, text in _in_fields(hit, searched))
        for hits in found
        for hit in hits
    )
    if looked_at > MARKED_TOGETHER:
        raise TooLarge(
            f"highlighting would search {looked_at} characters in the hits, more than {MARKED_TOGETHER}: {FEWER}",
            field="highlight",
        )
    return [
        _highlighted(corpus, hits, query.text or "", options.words) for hits, query in zip(found, queries, strict=True)
    ]


def resembling(corpus: Searchable, like: Examples, options: SearchOptions) -> tuple[list[Query], SearchOptions]:
    """Convert the examples `like` to a query by vector, and to options that exclude the examples from the hits.

    The vector of a document is the mean of the vectors of its passages, scaled to length 1. Let p and n be the mean
    vectors of the positive and of the negative examples. The query is p + (p - n) or, without negative examples, p.

    Raises:
        Invalid: an example is not in the corpus, or the examples cancel each other out.
    """
    positive = _mean(corpus, like.positive, "like.positive")
    wanted = 2 * positive - _mean(corpus, like.negative, "like.negative") if like.negative else positive
    if not np.linalg.norm(wanted) > 1e-6:
        raise Invalid("the examples cancel each other out", field="like")
    others = Not(In(ID, (*like.positive, *like.negative)))
    return [Query(None, wanted)], replace(options, where=All((options.where, others)) if options.where else others)


def _mean(corpus: Searchable, ids: Sequence[str], field: str) -> Floats:
    """Return the mean (D,) of the vectors of the documents with these ids.

    The vector of a document is the mean of the vectors of its passages, scaled to length 1.

    Raises:
        Invalid: a document is not in the corpus.
    """
    keys = corpus.keys_of(ids)
    vectors, owners = corpus.vectors(keys), corpus.documents(keys)
    of_document: dict[str, list[Floats]] = {}
    for key, document in owners.items():
        if key in vectors:
            of_document.setdefault(document.id, []).append(vectors[key])
    for i, id in enumerate(ids):
        if id not in of_document:
            raise Invalid(f"the corpus has no document {id!r}", field=f"{field}.{i}")
    means = [np.mean(of_document[id], axis=0) for id in ids]
    mean: Floats = np.mean([one / max(float(np.linalg.norm(one)), 1e-12) for one in means], axis=0, dtype=np.float64)
    return mean


def _too_large(options: SearchOptions) -> TooLarge:
    return TooLarge(f"the texts of the hits have more than {options.max_characters} characters: {FEWER}")


def _highlighted(corpus: Searchable, hits: Sequence[Hit], query: str, options: WordOptions) -> list[Hit]:
    searched = corpus.searched_fields()
    fields = [_in_fields(hit, searched) for hit in hits]
    texts = [*(hit.text for hit in hits), *(text for own in fields for _, text in own)]
    marked = iter(corpus.highlights(texts, query, options))
    found = [hit._replace(highlights=next(marked)) for hit in hits]
    if not searched:
        return found
    in_fields = [[FieldHighlights(field, text, next(marked)) for field, text in own] for own in fields]
    return [
        hit._replace(field_highlights=[one for one in own if one.highlights])
        for hit, own in zip(found, in_fields, strict=True)
    ]


def _in_fields(hit: Hit, searched: Collection[str]) -> list[tuple[str, str]]:
    """Return (field, text) for each string in the `searched` metadata fields of the hit's document."""
    return [(field, text) for field in searched for text in texts_at(hit.passage.document.metadata, field)]


def _together(rankings: Sequence[_Ranked]) -> Iterator[list[_Ranked]]:
    """Split `rankings` into groups. The hits of all rankings in a group are read in one step."""
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
    """A ranking. After a hybrid search, it also has the dense and the lexical score of each key."""

    ranking: Ranking
    dense: Mapping[int, float] = NONE
    lexical: Mapping[int, float] = NONE
    dense_ranks: Mapping[int, int] = NONE
    """Ranks from 1, for `explain`."""
    lexical_ranks: Mapping[int, int] = NONE


class _Search:
    def __init__(self, corpus: Searchable, options: SearchOptions) -> None:
        self._corpus = corpus
        self._options = options

    def ranked(self, queries: Sequence[Query]) -> list[_Ranked]:
        """Return one page of hits for each query.

        Since the previous page was returned, writes may have added hits that rank above this page. If so many of the
        hits found rank above this page that too few are left for it, search for more hits.
        """
        if self._options.arranged:
            return [self._arranged(query) for query in queries]
        depth = self._options.k + self._options.offset + (self._options.after.seen if self._options.after else 0)
        found = self._rankings(queries, depth)
        return [self._page([query], ranked, depth) for query, ranked in zip(queries, found, strict=True)]

    def hits(self, rankings: Sequence[_Ranked]) -> list[list[Hit]]:
        keys = sorted({key for ranked in rankings for key in ranked.ranking.keys.tolist()})
        passages = self._passages(keys)
        vectors = self._corpus.vectors(keys) if self._options.with_vector else {}
        return [self._hits(ranked, passages, vectors) for ranked in rankings]

    def _passages(self, keys: Sequence[int]) -> dict[int, Passage]:
        """Return the passages of `keys`. At most `READ_AT_ONCE` passages are read at once.

        Each passage is read with its whole document, so a thousand passages could take a thousand megabytes of memory.

        Raises:
            TooLarge: the documents of the passages read so far have more than `max_characters` characters together.
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
        path = self._options.group_by
        return [
            Hit(
                passage,
                key,
                seen,
                score,
                ranked.dense.get(key),
                ranked.lexical.get(key),
                vectors.get(key),
                group=value_at(passage.document, path) if path else None,
                ranks=(ranked.dense_ranks.get(key), ranked.lexical_ranks.get(key)),
            )
            for seen, (key, score) in enumerate(zip(keys.tolist(), scores.tolist(), strict=True), start=before + 1)
            if (passage := passages.get(key))
        ]

    def _page(self, query: Sequence[Query], ranked: _Ranked, depth: int) -> _Ranked:
        options = self._options
        while True:
            keys, scores = ranked.ranking
            whole = len(keys) < depth
            # Skip a number of hits instead of comparing scores, because writes change fused scores.
            if options.mode == "hybrid" and options.after:
                keys, scores = keys[options.after.seen :], scores[options.after.seen :]
            elif options.after:
                score = options.after.score
                behind = (scores < score) | ((scores == score) & (keys > options.after.key))
                keys, scores = keys[behind], scores[behind]
            keys, scores = keys[options.offset :], scores[options.offset :]
            if len(keys) >= options.k or whole:
                keys, scores = self._good(Ranking(keys, scores))
                return ranked._replace(ranking=Ranking(keys[: options.k], scores[: options.k]))
            depth *= 2
            (ranked,) = self._rankings(query, depth)

    def _arranged(self, query: Query) -> _Ranked:
        """Return the sorted, diversified or grouped page of hits. If there are too few groups, search for more hits."""
        options = self._options
        page = slice(options.offset, options.offset + options.k)
        depth = arranging.DIVERSE if options.diversity else arranging.CANDIDATES
        while True:
            (ranked,) = self._rankings([query], depth)
            ranking = self._good(ranked.ranking)
            documents = self._corpus.documents(ranking.keys.tolist()) if options.sort or options.group_by else {}
            ranking = self._ordered(ranking, documents)
            if not options.group_by:
                return ranked._replace(ranking=Ranking(ranking.keys[page], ranking.scores[page]))
            chosen, groups = arranging.grouped(documents, ranking, options.group_by, page, options.group_size)
            if groups >= page.stop or len(ranked.ranking.keys) < depth or depth >= DEEPEST or options.diversity:
                return ranked._replace(ranking=Ranking(ranking.keys[chosen], ranking.scores[chosen]))
            depth *= 4

    def _ordered(self, ranking: Ranking, documents: dict[int, Document]) -> Ranking:
        options, keys = self._options, ranking.keys.tolist()
        order: Sequence[int] = range(len(keys))
        if options.sort:
            there = [i for i, key in enumerate(keys) if key in documents]
            order = [there[i] for i in arranging.sorted_by([documents[keys[i]] for i in there], options.sort)]
        elif options.diversity:
            vectors = self._corpus.vectors(keys)
            there = [i for i, key in enumerate(keys) if key in vectors]
            relevance = ranking.scores.astype(np.float32) if options.mode == "dense" else scaled_to_one(ranking)
            matrix = np.array([vectors[keys[i]] for i in there], np.float32)
            order = [there[i] for i in arranging.diverse(relevance[there], matrix, options.diversity, len(there))]
        return Ranking(ranking.keys[list(order)], ranking.scores[list(order)])

    def _good(self, ranking: Ranking) -> Ranking:
        if self._options.min_score is None:
            return ranking
        good = np.array([shown(score) >= self._options.min_score for score in ranking.scores.tolist()], dtype=bool)
        return Ranking(ranking.keys[good], ranking.scores[good])

    def _rankings(self, queries: Sequence[Query], depth: int) -> list[_Ranked]:
        mode = self._options.mode
        if mode == "dense":
            return [_Ranked(ranking, dense_ranks=self._ranks(ranking)) for ranking in self._dense(queries, depth)]
        if mode == "lexical":
            found = [self._lexical(query, depth) for query in queries]
            return [_Ranked(ranking, lexical_ranks=self._ranks(ranking)) for ranking in found]
        dense = self._dense(queries, CANDIDATES)
        return [self._fused(query, ranking, depth) for query, ranking in zip(queries, dense, strict=True)]

    def _fused(self, query: Query, dense: Ranking, depth: int) -> _Ranked:
        """Fuse the dense and the lexical ranking of a query into one of up to `depth` hits.

        Passages that are in at least one of the two rankings come first. If they are fewer than `depth`, passages of
        neither ranking follow in order of their cosine.

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
        bm25 = dict(zip(lexical.keys.tolist(), lexical.scores.tolist(), strict=True))
        return _Ranked(ranking, cosines, bm25, self._ranks(dense), self._ranks(lexical))

    def _ranks(self, ranking: Ranking) -> Mapping[int, int]:
        return {key: i for i, key in enumerate(ranking.keys.tolist(), start=1)} if self._options.explain else NONE

    def _dense(self, queries: Sequence[Query], depth: int) -> list[Ranking]:
        exact = self._options.exact or depth > DEEP
        return self._corpus.dense(_units(queries), depth, exact=exact)

    def _lexical(self, query: Query, depth: int) -> Ranking:
        assert query.text is not None, "a lexical search always has a query text"
        return self._corpus.lexical(query.text, depth, self._options.words)


def _units(queries: Sequence[Query]) -> Floats:
    """Return the (Q, D) vectors of `queries`, scaled to length 1."""
    given = np.array([query.vector for query in queries if query.vector is not None], dtype=np.float64)
    lengths = np.sqrt(np.vecdot(given, given))[:, None]
    lengths[lengths == 0] = 1
    unit: Floats = (given / lengths).astype(np.float32)
    return unit


def shown(score: float) -> float:
    """Round a score to the precision of answers. `min_score` is compared with the rounded score.

    BM25 scores are rounded only after the hits have been ordered.
    """
    return round(score, DECIMALS)
