"""Files of every released format open, answer and verify. Format 1 is the format of version 1.0.0.

Before a step is added to the migrations, a file of the format before it is kept in `formats`.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from serving.corpora.filter_language import compile_filter
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Document, Removal, Span, WordOptions
from tests.serving.corpora.stores.contents import content, filled

FOLDER = Path(__file__).parent / "formats"
FORMATS = sorted(FOLDER.glob("*.sqlite"))
REMOVED = {0, 3, 5, 19}


@pytest.fixture(params=FORMATS, ids=lambda path: path.stem)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[SqliteStore, str]]:
    shutil.copy(request.param, tmp_path)
    store = SqliteStore(tmp_path)
    yield store, request.param.stem
    store.close()


def test_it_holds_the_documents_and_vectors_that_were_written(opened: tuple[SqliteStore, str]) -> None:
    store, name = opened
    expected = {
        f"d{i}": Document(
            f"d{i}",
            f"Document number {i} of the first format.",
            {"i": i, "even": i % 2 == 0, "tags": ["a", "b"][: i % 3]},
        )
        for i in range(20)
        if i not in REMOVED
    }
    expected["d3"] = Document("d3", "Replaced: rivers in Zürich.", {"i": 3, "lang": "de"})
    expected["é/ü"] = Document("é/ü", "Ελληνικά 😀", {"nested": {"x": [1, 2.5, None]}})
    expected["lists"] = Document(
        "lists", "機械学習", {"by": [{"name": "Austen"}, {"name": "Burney"}], "at": "2024-03-05T08:29:59Z"}
    )
    expected["parts"] = Document("parts", "a first part with a soft\u00adhyphen, and the second part", {})
    page = store.page(name, 0, 100).rows
    assert [document for _, document in page] == list(expected.values())
    keys = [key for block, _ in store.vectors(name) for key in block.tolist()]
    passages = store.passages(name, keys).values()
    assert {passage.document.id for passage in passages} == set(expected)
    assert [passage.span for passage in passages if passage.document.id == "parts"] == [Span(0, 19), Span(20, 52)]
    corpus, size = store.corpus(name), store.size(name)
    assert (corpus.description, corpus.recall_target, corpus.stemming) == (f"of format {name}", 0.9, "porter")
    assert (corpus.fingerprint, corpus.dim) == ("f", 4)
    assert (size.documents, size.passages) == (len(expected), len(expected) + 1)
    assert store.verify(name) == []


def test_it_finds_by_words_fields_and_content(opened: tuple[SqliteStore, str]) -> None:
    store, name = opened
    for query, document in (("zurich river", "d3"), ("機械学習", "lists"), ("softhyphen", "parts")):
        (key,) = store.words(name, query, 5).keys.tolist()
        assert store.passages(name, [key])[key].document.id == document
    for query, options in (("zurcih", WordOptions(typos=True)), ("zuri", WordOptions(prefix=True))):
        (key,) = store.words(name, query, 5, options=options).keys.tolist()
        assert store.passages(name, [key])[key].document.id == "d3"
    for where, ids in (
        ({"tags": "b", "even": True}, ["d2", "d8", "d14"]),
        ({"by": {"$elemMatch": {"name": "Burney"}}}, ["lists"]),
        ({"at": {"$lt": "2024-03-05T08:30:00Z"}}, ["lists"]),
    ):
        assert store.ids_matching(name, compile_filter(where)) == ids
    known, unknown = store.embedded(name, ["Ελληνικά 😀", "new"], None, store.corpus(name).fingerprint or "")
    assert known is not None and known.spans is None
    assert unknown is None


def test_it_is_written_on(opened: tuple[SqliteStore, str]) -> None:
    store, name = opened
    last = store.last_key(name)
    tombstones = len(store.tombstones(name, last))
    assert last == 26, "the key of a removed document, which is never assigned again"
    ids = [document.id for _, document in store.page(name, 0, 100).rows]
    store.write(name, [Removal(ids), content([("new", "a river", {})])])
    assert store.last_key(name) == last + 1
    assert len(store.tombstones(name, last)) == tombstones + len(ids) + 1
    assert store.swap(name, store.corpus(name).fingerprint or "")
    assert store.verify(name) == []


def test_words_that_another_unicode_folded_are_indexed_anew(tmp_path: Path) -> None:
    store = filled(SqliteStore(tmp_path), "c", content([("a", "Straße", {})]))
    store.close()
    with closing(sqlite3.connect(tmp_path / "c.sqlite", isolation_level=None)) as connection:
        connection.execute("INSERT INTO words (words) VALUES ('delete-all')")
        connection.execute("INSERT INTO words (rowid, text) VALUES (1, 'straße')")
        connection.execute("UPDATE corpora SET unicode = '3.2.0'")
    store = SqliteStore(tmp_path)
    assert store.words("c", "strasse", 5).keys.tolist() == [1]
    store.write("c", [Removal(["a"])])
    assert store.words("c", "strasse straße", 5).keys.tolist() == []
    assert store.verify("c") == []
    store.close()
