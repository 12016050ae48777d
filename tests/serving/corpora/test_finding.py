"""Finding by meaning, by words and by both: pages, filters, and passages of documents that were cut."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.runtimes.base import Floats
from serving.corpora import search as finding
from serving.corpora.corpora import Corpora
from serving.corpora.filter_language import compile_filter
from serving.corpora.indexes.live import LiveIndex
from serving.corpora.open_corpus import Indexes
from serving.corpora.ports import Ranking
from serving.corpora.search import Cursor, Hit, Mode, Query, SearchOptions, SearchResult, shown
from serving.corpora.stores import STORES
from serving.corpora.stores.connections import Connections
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Chunking, Content, Corpus, Document, Keys, Passage, Span
from serving.errors import TooLarge
from tests.conftest import soon

DIM = 8
WORDS = ["whale", "city", "captain", "rain", "harbour", "letter"]


def texts(count: int) -> list[str]:
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(WORDS, draw.integers(1, 12))) for _ in range(count)]


def units(count: int, seed: int = 1) -> Floats:
    vectors = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    rows: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return rows


def content(count: int, first: int = 0, seed: int = 1) -> Content:
    documents = [Document(f"d{first + i}", text, {"n": first + i}) for i, text in enumerate(texts(count))]
    return Content(documents, units(count, seed), "f")


@pytest.fixture
def corpora(tmp_path: Path) -> Iterator[Corpora]:
    opened = Corpora(STORES["sqlite"](tmp_path / "corpora"), Indexes(tmp_path / "indexes"))
    opened.create(Corpus("c"))
    opened.put("c", content(300))
    yield opened
    opened.close()


QUERY = Query("a captain in the rain", units(1, 9)[0])


def find(corpora: Corpora, query: Query = QUERY, **wanted: Any) -> list[Hit]:
    (hits,) = corpora.search("c", [query], SearchOptions(**wanted)).hits
    return hits


def behind(corpora: Corpora, hit: Hit) -> Cursor:
    return SearchResult([], corpora.corpus("c")[0].generation, None).behind(hit)


def names(hits: list[Hit]) -> list[str]:
    return [hit.passage.document.id for hit in hits]


MODES: list[Mode] = ["dense", "lexical", "hybrid"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", soon([1, 7, 64], "7"))
def test_pages_by_cursor_are_the_ranking_cut(corpora: Corpora, mode: Mode, size: int) -> None:
    whole = names(find(corpora, mode=mode, k=1000))
    assert len(whole) == len(set(whole)) > 100
    read: list[str] = []
    page = find(corpora, mode=mode, k=size)
    while page and len(read) < 150:
        read += names(page)
        page = find(corpora, mode=mode, k=size, after=behind(corpora, page[-1]))
    assert read == whole[: len(read)]
    offsets = [name for at in range(0, len(read), size) for name in names(find(corpora, mode=mode, k=size, offset=at))]
    assert offsets == read


@pytest.mark.parametrize("size", [1, 7])
def test_pages_by_words_are_the_ranking_cut_where_scores_differ_by_less_than_float32_tells(
    corpora: Corpora, size: int
) -> None:
    """A word that most passages have weighs a millionth."""
    draw = np.random.default_rng(0).integers(1, 5, (600, 2))
    rare = ("python coroutine timeout", "horse rider saddle")
    texts = [f"{'the ' * the}{'of ' * of}{rare[i % 20 > 0]}" for i, (the, of) in enumerate(draw)]
    corpora.put("c", Content([Document(f"c{i}", text, {}) for i, text in enumerate(texts)], units(600), "f"))
    query = Query("the timeout of the python coroutine", None)
    hits = find(corpora, query, mode="lexical", k=1000)
    tied = {np.float32(hit.score) for hit in hits[:30]}
    assert len(tied) < len({hit.score for hit in hits[:30]})
    assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.key))
    read: list[str] = []
    while len(read) < 100:
        read += names(
            find(corpora, query, mode="lexical", k=size, after=behind(corpora, hits[len(read) - 1]) if read else None)
        )
    assert read == names(hits)[: len(read)]


def test_a_cursor_neither_repeats_nor_skips_while_others_write(corpora: Corpora) -> None:
    whole = names(find(corpora, k=1000))
    read: list[str] = []
    page = find(corpora, k=20)
    for turn in range(100):
        read += names(page)
        if len(page) < 20:
            break
        better = Content([Document(f"new{turn}", "x", {})], QUERY.vector[None] if QUERY.vector is not None else [], "f")  # type: ignore[arg-type]
        corpora.put("c", better)  # ahead of every page
        corpora.delete("c", read[turn])  # of a page that was read
        page = find(corpora, k=20, after=behind(corpora, page[-1]))
    assert read == whole


@pytest.fixture
def approximate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tenth document is missed, as an approximate index may, unless it is exact."""
    search = LiveIndex.search

    def misses(
        self: LiveIndex, queries: Floats, k: int, allowed: Keys | None = None, *, exact: bool = False
    ) -> list[Ranking]:
        if exact:
            return search(self, queries, k, allowed, exact=True)
        found = [(one, one.keys % 10 != 0) for one in search(self, queries, 1000, allowed)]
        return [Ranking(one.keys[seen][:k], one.scores[seen][:k]) for one, seen in found]

    monkeypatch.setattr(LiveIndex, "search", misses)


@pytest.mark.usefixtures("approximate")
def test_pages_of_an_index_that_misses_some_repeat_none_and_exact_ones_hold_all(corpora: Corpora) -> None:
    def read(*, exact: bool) -> list[str]:
        pages = [find(corpora, k=20, exact=exact)]
        while len(pages[-1]) == 20:
            pages.append(find(corpora, k=20, exact=exact, after=behind(corpora, pages[-1][-1])))
        return [name for page in pages for name in names(page)]

    found = read(exact=False)
    assert len(set(found)) == len(found) == 270
    assert sorted(read(exact=True)) == sorted(f"d{i}" for i in range(300))


@pytest.mark.usefixtures("approximate")
def test_what_lies_deep_is_looked_for_exactly(corpora: Corpora, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a page comes to be deep."""
    monkeypatch.setattr(finding, "DEEP", 100)
    whole = names(find(corpora, k=300, exact=True))
    assert names(find(corpora, k=100)) != whole[:100]
    assert names(find(corpora, k=101)) == whole[:101]
    assert names(find(corpora, k=1, offset=100)) == whole[100:101]
    place = behind(corpora, find(corpora, k=100, exact=True)[-1])
    assert names(find(corpora, k=50, after=place)) == whole[100:150]


@pytest.mark.parametrize("size", [7, 64])
@pytest.mark.parametrize("where", [None, {"n": {"$gte": 30}}])
def test_hybrid_pages_lead_to_the_end_behind_what_is_fused(
    corpora: Corpora, monkeypatch: pytest.MonkeyPatch, size: int, where: dict[str, Any] | None
) -> None:
    """What is neither among the nearest nor has many of the words comes last, nearest first."""
    monkeypatch.setattr(finding, "CANDIDATES", 40)
    wanted: dict[str, Any] = {"mode": "hybrid", "where": where and compile_filter(where)}
    fused = [hit for hit in find(corpora, k=1000, **wanted) if hit.score > 0]
    assert 40 < len(fused) <= 80
    read, page = list[Hit](), find(corpora, k=size, **wanted)
    while page:
        read += page
        page = find(corpora, k=size, after=behind(corpora, page[-1]), **wanted)
    assert sorted(names(read)) == sorted(f"d{n}" for n in range(30 if where else 0, 300))
    assert names(read[: len(fused)]) == names(fused)
    cosines = [hit.dense for hit in read[len(fused) :]]
    assert None not in cosines and cosines == sorted(cosines, key=lambda cosine: -(cosine or 0.0))
    assert {hit.score for hit in read[len(fused) :]} == {0.0}
    assert names(find(corpora, k=10, offset=200, **wanted)) == names(read[200:210])


def test_hybrid_hits_say_what_they_were_found_by(corpora: Corpora) -> None:
    dense = {name: hit.score for hit in find(corpora, k=1000) for name in [hit.passage.document.id]}
    lexical = {name: hit.score for hit in find(corpora, mode="lexical", k=1000) for name in [hit.passage.document.id]}
    hits = find(corpora, mode="hybrid", k=50)
    assert {hit.lexical is None for hit in find(corpora, mode="hybrid", k=1000)} == {True, False}
    for hit in hits:
        name = hit.passage.document.id
        assert hit.dense == pytest.approx(dense[name], abs=2e-6)
        assert hit.lexical == pytest.approx(lexical[name], abs=1e-5) if hit.lexical is not None else True
    query = Query("letter", QUERY.vector)
    words = find(corpora, query, mode="lexical", k=1000)
    above_last = [name for hit, name in zip(words, names(words), strict=True) if hit.score > words[-1].score]
    only = find(corpora, query, mode="hybrid", k=1000, fusion="weighted", alpha=0.0)
    assert set(names(only)[: len(above_last)]) == set(above_last)


@pytest.mark.parametrize("mode", MODES)
def test_filters_hold_and_never_leave_an_answer_short(corpora: Corpora, mode: Mode) -> None:
    where = compile_filter({"n": {"$in": list(range(0, 300, 17))}})
    found = find(corpora, mode=mode, k=1000, where=where)
    expected = [hit for hit in find(corpora, mode=mode, k=1000) if where.matches(hit.passage.document.metadata)]
    if mode != "hybrid":  # there ranks, and so scores, are those among what matches
        assert [(hit.key, hit.score) for hit in found] == [(hit.key, hit.score) for hit in expected]
    assert set(names(found)) >= set(names(expected))
    assert all(where.matches(hit.passage.document.metadata) for hit in found)


def test_hits_of_a_document_that_was_cut_name_their_span(corpora: Corpora) -> None:
    text = "the whale is white. the city is grey."
    spans = [Span(0, 19), Span(20, 37)]
    cut = Content([Document("cut", text, {})], np.eye(2, DIM, dtype=np.float32), "f", [spans], Chunking(16, 0))
    corpora.put("c", cut)
    hits = find(corpora, Query("grey", np.eye(2, DIM, dtype=np.float32)[1]), k=1)
    assert (hits[0].text, hits[0].passage.span) == ("the city is grey.", Span(20, 37))
    assert names(find(corpora, Query("white", None), mode="lexical", k=5)) == ["cut"]
    corpora.delete("c", "cut")
    assert "cut" not in names(find(corpora, k=1000))
    assert find(corpora, Query("white", None), mode="lexical") == []


def test_min_score_cuts_the_end_off(corpora: Corpora) -> None:
    for mode in MODES:
        whole = find(corpora, mode=mode, k=50)
        least = shown(whole[20].score)
        kept = find(corpora, mode=mode, k=50, min_score=least)
        assert names(kept) == names([hit for hit in whole if shown(hit.score) >= least])


def test_a_search_by_vector_reads_the_store_once(corpora: Corpora, monkeypatch: pytest.MonkeyPatch) -> None:
    hits = find(corpora, k=5)
    reads: list[Path] = []
    reading = Connections.reading

    def noted(connections: Connections) -> AbstractContextManager[sqlite3.Connection]:
        reads.append(connections.path)
        return reading(connections)

    monkeypatch.setattr(Connections, "reading", noted)
    assert find(corpora, k=5) == hits
    assert len(reads) == 1


def test_no_more_texts_are_read_than_may_be_found(corpora: Corpora, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 documents that a query finds, a few are too much: the others stay on disk."""
    read: list[int] = []
    passages = SqliteStore.passages

    def counted(self: SqliteStore, name: str, keys: Sequence[int]) -> dict[int, Passage]:
        read.append(len(keys))
        return passages(self, name, keys)

    monkeypatch.setattr(SqliteStore, "passages", counted)
    monkeypatch.setattr(finding, "READ_AT_ONCE", 8)
    with pytest.raises(TooLarge, match="more than 100 characters"):
        find(corpora, k=300, max_characters=100)
    assert 0 < sum(read) < 50
    assert len(find(corpora, k=300)) == 300
