"""What every backend of corpora does, on SQLite and on Milvus: the contract of `serving.corpora.backend`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.runtimes.base import Floats
from serving.commands.starting import opened_corpora
from serving.corpora.backend import Backend, DocumentCursor, Stale
from serving.corpora.filter_language import compile_filter
from serving.corpora.filters import with_id
from serving.corpora.search import Examples, Hit, Mode, Query, SearchOptions
from serving.corpora.values import OWN, Changes, Chunking, Content, Corpus, Document, OwnVectors, Sort, Span
from serving.errors import Conflict, Invalid, NotFound
from serving.settings import Settings
from tests.serving.backends import BACKENDS, milvus_of
from tests.serving.corpora.stores.contents import content, vectors

DIM = 8
WORDS = ["whale", "city", "captain", "rain", "harbour", "letter"]
DOCUMENTS = 120
QUERY = "a captain in the rain"
MODES: list[Mode] = ["dense", "lexical", "hybrid"]


def settings(folder: Path, backend: str) -> Settings:
    return Settings(data=folder, store=milvus_of(folder) if backend == "milvus" else backend)


@pytest.fixture(scope="module", params=[*BACKENDS.values()])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    opened = opened_corpora(settings(tmp_path_factory.mktemp("corpora"), request.param))
    opened.create(Corpus("whales"))
    opened.put("whales", whales())
    yield opened
    for name in opened.names():
        opened.drop(name)
    opened.close()


_names = (f"c{i}" for i in count())


@pytest.fixture
def corpus(backend: Backend) -> Iterator[str]:
    """An empty corpus of its own."""
    name = next(_names)
    assert backend.create(Corpus(name))
    yield name
    if name in backend.names():
        backend.drop(name)


def units(rows: int, seed: int = 1) -> Floats:
    vectors = np.random.default_rng(seed).standard_normal((rows, DIM)).astype(np.float32)
    scaled: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


def whales() -> Content:
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, draw.integers(1, 12))) for _ in range(DOCUMENTS)]
    documents = [Document(f"d{i:03}", text, {"n": i, "odd": i % 2 == 1}) for i, text in enumerate(texts)]
    return Content(documents, units(DOCUMENTS), "f")


def found(backend: Backend, name: str = "whales", query: str = QUERY, **options: Any) -> list[Hit]:
    vector = None if options.get("mode") == "lexical" else units(1, 9)[0]
    (hits,) = backend.search(name, [Query(query, vector)], SearchOptions(**options)).hits
    return hits


def ids(hits: list[Hit]) -> list[str]:
    return [hit.passage.document.id for hit in hits]


def listed(backend: Backend, name: str, where: Any = None, limit: int = 1000) -> list[str]:
    after, read = None, list[str]()
    while True:
        page = backend.page(name, after, limit, None if where is None else compile_filter(where))
        read += [document.id for document in page.documents]
        if (after := page.following) is None:
            assert page.total == len(read)
            return read


def test_a_corpus_is_created_described_and_dropped(backend: Backend, corpus: str) -> None:
    assert not backend.create(Corpus(corpus, description="mine", recall_target=0.9))
    assert not backend.create(Corpus(corpus, description=None))
    described, size = backend.corpus(corpus)
    assert (described.description, described.recall_target, described.fingerprint) == ("mine", 0.9, None)
    assert (size.documents, size.passages) == (0, 0)
    backend.put(corpus, content([("a", "text", {})]))
    described, size = backend.corpus(corpus)
    assert (described.fingerprint, described.dim, size.documents, size.passages) == ("f", 4, 1, 1)
    assert backend.verify(corpus) == []
    backend.drop(corpus)
    assert corpus not in backend.names()
    for read in (backend.corpus, backend.description, lambda name: backend.document(name, "a"), backend.drop):
        with pytest.raises(NotFound):
            read(corpus)
    assert backend.create(Corpus(corpus))
    assert backend.corpus(corpus)[1].documents == 0


def test_a_corpus_of_own_vectors_takes_nothing_else(backend: Backend, corpus: str) -> None:
    backend.create(Corpus(corpus), encoder=OwnVectors(4))
    with pytest.raises(Conflict, match=f"vectors of corpus '{corpus}' come with its documents"):
        backend.put(corpus, content([("a", "text", {})]))
    own = content([("a", "text", {})]).vectors
    backend.put(corpus, Content([Document("a", "text", {})], own, OWN))
    with pytest.raises(Conflict, match="4 numbers, not 8"):
        backend.put(corpus, Content([Document("b", "text", {})], units(1), OWN))
    backend.delete(corpus, "a")
    for other in (content([("a", "text", {})]), Content([Document("b", "text", {})], units(1), OWN)):
        with pytest.raises(Conflict):
            backend.put(corpus, other)
    described, size = backend.corpus(corpus)
    assert (described.own_vectors, described.dim, size.documents) == (True, 4, 0)
    with pytest.raises(Conflict, match="search by vector"):
        backend.encoder(corpus, ["f"])


def test_the_corpus_of_an_encoder_takes_no_own_vectors(backend: Backend) -> None:
    with pytest.raises(Conflict, match="create another corpus"):
        backend.create(Corpus("whales"), encoder=OwnVectors())
    with pytest.raises(Conflict, match="create another corpus"):
        backend.put("whales", Content([Document("b", "text", {})], units(1), OWN))


def test_documents_are_replaced_and_removed(backend: Backend, corpus: str) -> None:
    backend.put(corpus, content([("a", "old", {"n": 1}), ('"b\\\n', "other ü", {"deep": [{"x": [1, None]}]})]))
    backend.put(corpus, content([("a", "new", {"n": 2})]))
    assert backend.document(corpus, "a") == Document("a", "new", {"n": 2})
    assert backend.document(corpus, '"b\\\n') == Document('"b\\\n', "other ü", {"deep": [{"x": [1, None]}]})
    assert sorted(listed(backend, corpus)) == ['"b\\\n', "a"]
    backend.delete(corpus, '"b\\\n')
    with pytest.raises(NotFound):
        backend.delete(corpus, '"b\\\n')
    assert listed(backend, corpus) == ["a"]
    with pytest.raises(Invalid, match="given twice"):
        backend.put(corpus, content([("x", "1", {}), ("x", "2", {})]))
    assert listed(backend, corpus) == ["a"], "nothing of a refused upload is stored"


def test_passages_of_a_document_come_and_go_together(backend: Backend, corpus: str) -> None:
    text = "  the whale is white. the city is grey. the rain is warm."
    spans = [Span(2, 21), Span(22, 39), Span(40, 57)]
    vectors = np.eye(3, DIM, dtype=np.float32)
    for count_of in (3, 2, 1, 3):
        kept = [*spans[: count_of - 1], Span(spans[count_of - 1].start, len(text))]
        backend.put(
            corpus, Content([Document("cut", text, {"k": 1})], vectors[:count_of], "f", [kept], Chunking(16, 0))
        )
        assert backend.document(corpus, "cut") == Document("cut", text, {"k": 1})
        assert backend.corpus(corpus)[1][::2] == (1, count_of)
        hits = backend.search(corpus, [Query("grey", vectors[count_of - 1])], SearchOptions(k=5)).hits[0]
        assert [hit.passage.span for hit in hits][:1] == kept[-1:]
        assert {hit.passage.document.text for hit in hits} == {text}
        assert backend.verify(corpus) == []
    assert [hit.text for hit in found(backend, corpus, "grey", mode="lexical")] == ["the city is grey."]
    assert backend.delete_where(corpus, compile_filter({"k": 1})) == 1
    assert backend.corpus(corpus)[1][::2] == (0, 0)


@pytest.mark.parametrize("limit", [7, 120, 1000])
def test_pages_of_documents_hold_each_once(backend: Backend, limit: int) -> None:
    assert listed(backend, "whales", limit=limit) == [f"d{i:03}" for i in range(DOCUMENTS)]
    assert listed(backend, "whales", {"n": {"$gte": 100}}, limit) == [f"d{i:03}" for i in range(100, DOCUMENTS)]
    with pytest.raises(Invalid, match="cursor"):
        backend.page("whales", DocumentCursor("other", "1"), 1)


def test_dense_search_is_the_order_of_cosines(backend: Backend) -> None:
    cosines = units(DOCUMENTS) @ units(1, 9)[0]
    hits = found(backend, k=DOCUMENTS, with_vector=True)
    assert [hit.score for hit in hits] == pytest.approx(sorted(cosines.tolist(), reverse=True), abs=2e-6)
    assert ids(hits)[:20] == [f"d{i:03}" for i in np.argsort(-cosines)[:20]]
    for hit in hits:
        assert hit.vector == pytest.approx(units(DOCUMENTS)[hit.passage.document.metadata["n"]], abs=1e-6)


def test_lexical_search_finds_the_passages_with_a_word(backend: Backend) -> None:
    texts = {document.id: document.text.split() for document in whales().documents}
    asked = {"captain", "rain"}
    hits = found(backend, k=DOCUMENTS, mode="lexical")
    assert set(ids(hits)) == {name for name, words in texts.items() if asked & set(words)}
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    phrase = found(backend, query='"captain rain"', k=DOCUMENTS, mode="lexical", highlight=True)
    assert set(ids(phrase)) == {name for name, words in texts.items() if "captain rain" in " ".join(words)}
    assert all(hit.highlights for hit in phrase)
    assert found(backend, query="penguin", mode="lexical") == []
    assert found(backend, query="!?", mode="lexical") == []


@pytest.mark.parametrize("fusion", ["rrf", "weighted"])
def test_hybrid_search_says_what_each_hit_was_found_by(backend: Backend, fusion: str) -> None:
    hits = found(backend, mode="hybrid", k=DOCUMENTS, fusion=fusion)
    assert sorted(ids(hits)) == [f"d{i:03}" for i in range(DOCUMENTS)]
    cosines = {hit.passage.document.id: hit.score for hit in found(backend, k=DOCUMENTS)}
    by_words = set(ids(found(backend, mode="lexical", k=DOCUMENTS)))
    for hit in hits:
        assert hit.dense == pytest.approx(cosines[hit.passage.document.id], abs=2e-6)
        assert (hit.lexical is not None) == (hit.passage.document.id in by_words)


@pytest.mark.parametrize("mode", MODES)
def test_pages_of_hits_are_the_ranking_cut(backend: Backend, mode: Mode) -> None:
    whole = ids(found(backend, mode=mode, k=60))
    read, after = list[str](), None
    while len(read) < len(whole):
        result = backend.search("whales", [Query(QUERY, units(1, 9)[0])], SearchOptions(mode=mode, k=13, after=after))
        (page,) = result.hits
        read += ids(page)
        after = result.behind(page[-1])
    assert read[: len(whole)] == whole
    assert ids(found(backend, mode=mode, k=5, offset=9)) == whole[9:14]


@pytest.mark.parametrize("mode", MODES)
def test_filters_hold_in_every_search(backend: Backend, mode: Mode) -> None:
    where = compile_filter({"odd": True, "n": {"$lt": 90}})
    hits = found(backend, mode=mode, k=40, where=where)
    assert hits
    assert all(where.matches(hit.passage.document.metadata) for hit in hits)
    if mode != "lexical":
        assert len(hits) == 40


METADATA: dict[str, dict[str, Any]] = {
    "a": {"year": 1815, "by": {"name": "Austen"}, "tags": ["novel", "love"], "day": "2024-03-05"},
    "b": {"year": 1851.5, "by": [{"name": "Melville", "born": 1819}, {"name": "Ishmael"}], "open": True, "gone": None},
    "c": {"year": "1851", "a.b": {"c": "x"}, "a": {"b.c": "y", "b": {"c": "z"}}, "open": False, "tags": []},
    "d": {"prices": [3, 30], "day": "2024-03-05T10:00:00+02:00", "tags": [["novel"]], "text": '"quoted\\ \n'},
    "e": {},
}
FILTERS: list[Any] = [
    {},
    {"year": 1815},
    {"year": {"$gt": 1815}},
    {"year": {"$gte": 1815, "$lt": 1851.5}},
    {"year": {"$lte": "1851"}},
    {"year": {"$ne": 1815}},
    {"year": {"$nin": [1815, "1851"]}},
    {"year": {"$in": []}},
    {"year": None},
    {"gone": None},
    {"gone": {"$exists": True}},
    {"gone": {"$exists": False}},
    {"open": True},
    {"open": {"$ne": True}},
    {"open": 1},
    {"tags": "novel"},
    {"tags": ["novel"]},
    {"tags": []},
    {"by.name": "Ishmael"},
    {"by.name": {"$gt": "B"}},
    {"by": {"name": "Austen"}},
    {"by.born": {"$lt": 1900}},
    {"a.b.c": "x"},
    {"a.b.c": "y"},
    {"a.b.c": "z"},
    {"prices": {"$gt": 10}},
    {"prices": {"$lt": 10}},
    {"prices": {"$not": {"$gt": 10}}},
    {"day": {"$gt": "2024-03-05T07:00:00Z"}},
    {"day": {"$gte": "2024-03-05", "$lt": "2024-03-06"}},
    {"text": '"quoted\\ \n'},
    {"text": {"$gte": '"quoted\\'}},
    {"$id": {"$in": ["a", "e", "z"]}},
    {"$id": {"$ne": "a"}},
    {"$not": {"$or": [{"year": 1815}, {"open": True}]}},
    {"$and": [{"year": {"$exists": True}}, {"$not": {"open": False}}]},
]


@pytest.fixture(scope="module")
def described(backend: Backend) -> str:
    backend.create(Corpus("described"))
    backend.put("described", content([(name, name, metadata) for name, metadata in METADATA.items()]))
    return "described"


@pytest.mark.parametrize("where", FILTERS, ids=repr)
def test_a_filter_finds_what_it_matches(backend: Backend, described: str, where: Any) -> None:
    matching = compile_filter(where)
    expected = [name for name, metadata in METADATA.items() if matching.matches(with_id(metadata, name))]
    assert listed(backend, described, where) == expected


def test_fields_and_samples_of_metadata(backend: Backend, described: str) -> None:
    facets = {facet.field: facet for facet in backend.facets(described, 5).fields}
    assert set(facets) >= {"year", "by.name", "tags", "open", "gone"}
    assert (facets["year"].kinds, facets["year"].least, facets["year"].greatest) == (["number", "string"], 1815, 1851.5)
    assert {(value.value, value.documents) for value in facets["open"].values} == {(True, 1), (False, 1)}
    sample = backend.sample(described, 5, "year")
    assert {one.document: one.value for one in sample.passages} == {
        name: metadata.get("year") for name, metadata in METADATA.items()
    }
    assert (sample.vectors.shape, sample.of) == ((5, 4), 5)
    (warning,) = backend.unmatched(described, compile_filter({"yaer": 1}))
    assert warning.startswith("no document has the field 'yaer'")


def test_metadata_are_patched_and_passages_stay(backend: Backend, corpus: str) -> None:
    backend.put(corpus, content([("a", "one two three", {"n": 1, "deep": {"x": 1, "y": 2}}), ("b", "four", {"n": 2})]))
    backend.put(corpus, content([("cut", "one two three four", {"n": 3})], chunking=Chunking(2, 0)))
    assert backend.patch(corpus, ["a", "cut", "none"], Changes({"deep": {"y": None, "z": [1]}, "n": 9})) == 2
    assert backend.document(corpus, "a") == Document("a", "one two three", {"n": 9, "deep": {"x": 1, "z": [1]}})
    assert backend.document(corpus, "cut") == Document("cut", "one two three four", {"n": 9, "deep": {"z": [1]}})
    assert listed(backend, corpus, {"n": 9}) == ["a", "cut"]
    assert backend.patch(corpus, compile_filter({"n": 9}), Changes({"n": 10})) == 2
    assert listed(backend, corpus, {"n": {"$gt": 2}}) == ["a", "cut"]
    assert len(found_by_words(backend, corpus, "four", {"n": 10})) == 1
    assert backend.corpus(corpus)[1][::2] == (3, 4)


def found_by_words(backend: Backend, corpus: str, query: str, where: Any) -> list[Hit]:
    options = SearchOptions(mode="lexical", where=compile_filter(where))
    return backend.search(corpus, [Query(query, None)], options).hits[0]


def test_passages_and_values_are_counted(backend: Backend) -> None:
    counts = backend.counts("whales", None, compile_filter({"n": {"$lt": 11}}), ["odd"], 5)
    assert (counts.passages, counts.complete) == (11, True)
    assert {(value.value, value.documents) for value in counts.values["odd"]} == {(False, 6), (True, 5)}
    with_word = sum("captain" in document.text.split() for document in whales().documents)
    assert backend.counts("whales", "captain", None, [], 5).passages == with_word
    assert backend.counts("whales", "penguin", None, [], 5).passages == 0


def test_hits_resemble_examples_and_are_sorted_grouped_and_diverse(backend: Backend) -> None:
    (alike,) = backend.search("whales", [Query(None, None, Examples(["d003"]))], SearchOptions(k=5)).hits
    cosines = units(DOCUMENTS) @ units(DOCUMENTS)[3]
    assert ids(alike) == [f"d{i:03}" for i in np.argsort(-cosines)[1:6]]
    with pytest.raises(Invalid, match="no document 'none'"):
        backend.search("whales", [Query(None, None, Examples(["none"]))], SearchOptions())
    groups = found(backend, group_by="odd", k=2)
    assert {hit.group for hit in groups} == {True, False}
    ordered = found(backend, sort=[Sort("n", descending=True)], k=5)
    assert ids(ordered) == [f"d{i:03}" for i in range(DOCUMENTS - 1, DOCUMENTS - 6, -1)]
    assert len(set(ids(found(backend, diversity=0.5, k=10)))) == 10


def test_vectors_of_another_encoder_are_refused(backend: Backend, corpus: str) -> None:
    backend.put(corpus, content([("a", "text", {})], "f"))
    with pytest.raises(Conflict, match="another bundle"):
        backend.put(corpus, content([("b", "text", {})], "g"))
    with pytest.raises(Stale, match="does not serve"):
        backend.search(corpus, [Query("text", np.ones(3, np.float32))], SearchOptions(), "g")
    with pytest.raises(Invalid, match="4 dimensions"):
        backend.search(corpus, [Query("text", np.ones(3, np.float32))], SearchOptions())
    backend.delete(corpus, "a")
    backend.put(corpus, content([("b", "text", {})], "g"))
    assert backend.corpus(corpus)[0].fingerprint == "g", "an empty corpus takes any encoder"


def test_a_corpus_is_embedded_again_beside_its_vectors(backend: Backend, corpus: str) -> None:
    rows = [(f"d{i:02}", f"text number {i}", {"n": i}) for i in range(20)]
    backend.put(corpus, content(rows, "f", Chunking(2, 0)))
    before = backend.corpus(corpus)[0].generation
    embed_stale(backend, corpus, most=15)
    assert not backend.swap(corpus, "g")
    backend.put(corpus, content([("d03", "another text of many words", {"n": 3})], "f", Chunking(2, 0)))
    backend.delete(corpus, "d04")
    assert backend.corpus(corpus)[0].fingerprint == "f"
    embed_stale(backend, corpus)
    assert backend.swap(corpus, "g")
    described, size = backend.corpus(corpus)
    assert (described.fingerprint, described.dim, size.documents, size.passages) == ("g", 3, 19, 2 * 18 + 3)
    assert described.generation != before
    assert backend.swap(corpus, "g")
    assert backend.document(corpus, "d03") == Document("d03", "another text of many words", {"n": 3})
    assert backend.verify(corpus) == []
    (hits,) = backend.search(corpus, [Query(None, np.ones(3, np.float32))], SearchOptions(k=100), "g").hits
    assert len(hits) == size.passages


def test_a_text_that_is_replaced_while_it_is_embedded_again_gets_its_own_vector(backend: Backend, corpus: str) -> None:
    backend.put(corpus, content([("a", "old", {}), ("b", "same", {})]))
    late = backend.stale(corpus, "g", 8)
    backend.put(corpus, content([("a", "new", {})]))
    for rows in (late, backend.stale(corpus, "g", 8), backend.stale(corpus, "g", 8)):
        backend.refresh(corpus, "g", [key for key, _ in rows], vectors("g", [text for _, text in rows]))
    assert backend.swap(corpus, "g")
    stored = {
        document.id: (document.text, vector.tolist())
        for block in backend.contents(corpus)
        for document, vector in zip(block.documents, block.vectors, strict=True)
    }
    assert stored == {id: (text, vectors("g", [text])[0].tolist()) for id, text in (("a", "new"), ("b", "same"))}


def embed_stale(backend: Backend, name: str, most: int | None = None) -> None:
    embedded = 0
    while rows := backend.stale(name, "g", 8):
        vectors = np.random.default_rng(embedded).standard_normal((len(rows), 3)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        backend.refresh(name, "g", [key for key, _ in rows], vectors)
        embedded += len(rows)
        if most is not None and embedded >= most:
            return


def test_later_writes_win_over_an_accepted_upload(backend: Backend, corpus: str) -> None:
    backend.accept(corpus, "job")
    assert backend.accepted(corpus) == ["job"]
    backend.put(corpus, content([("a", "later", {})]))
    backend.put(corpus, content([("b", "gone", {})]))
    backend.delete(corpus, "b")
    upload = content([("a", "earlier", {}), ("b", "earlier", {}), ("c", "earlier", {})])
    backend.put(corpus, Content(upload.documents, upload.vectors, "f", job="job"))
    assert {id: backend.document(corpus, id).text for id in listed(backend, corpus)} == {"a": "later", "c": "earlier"}
    backend.release(corpus, "job")
    assert backend.accepted(corpus) == []


def test_a_refused_write_keeps_no_upload_from_its_documents(backend: Backend, corpus: str) -> None:
    backend.put(corpus, content([("a", "text", {})]))
    backend.accept(corpus, "job")
    with pytest.raises(Conflict):
        backend.put(corpus, content([("b", "refused", {})], "g"))
    upload = content([("b", "accepted", {})])
    backend.put(corpus, Content(upload.documents, upload.vectors, "f", job="job"))
    assert backend.document(corpus, "b").text == "accepted"
    backend.release(corpus, "job")


def test_words_are_stemmed_where_the_corpus_says_so(backend: Backend, corpus: str) -> None:
    backend.create(Corpus(corpus, stemming="porter"))
    backend.put(corpus, content([("a", "a loose connection", {}), ("b", "a pipe", {})]))
    assert ids(found(backend, corpus, "connected", mode="lexical")) == ["a"]
    with pytest.raises(Conflict, match="stemming"):
        backend.create(Corpus(corpus, stemming="none"))


def test_everything_is_there_after_a_restart(tmp_path: Path, backend: Backend, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["backend"]
    first = opened_corpora(settings(tmp_path, kind))
    first.create(Corpus("restarted", description="mine", stemming="porter"))
    first.put(
        "restarted", content([("a", "some connections", {"n": 1}), ("b", "two words", {})], chunking=Chunking(1, 0))
    )
    first.accept("restarted", "job")
    before = first.corpus("restarted")
    first.close()
    again = opened_corpora(settings(tmp_path, kind))
    again.warm()
    assert again.corpus("restarted")[0] == before[0]
    assert again.corpus("restarted")[1][::2] == (2, 4)
    assert again.accepted("restarted") == ["job"]
    assert ids(found(again, "restarted", "connection", mode="lexical")) == ["a"]
    assert listed(again, "restarted", {"n": 1}) == ["a"]
    again.drop("restarted")
    again.close()
