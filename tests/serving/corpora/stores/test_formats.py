"""Files of every format that there ever was open, answer and verify.

Each was written by the code of its time. Before a step is added to the migrations, one of the format before it is kept.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from serving.corpora.filters import compile_filter
from serving.corpora.ports import Document, Removal, Span
from serving.corpora.stores.sqlite import SqliteStore
from tests.serving.corpora.stores.contents import content, filled

FOLDER = Path(__file__).parent / "formats"
FORMATS = sorted(FOLDER.glob("[0-9].sqlite"))
REMOVED = {0, 3, 5, 19}


@pytest.fixture(params=FORMATS, ids=lambda path: path.stem)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[SqliteStore, str]]:
    shutil.copy(request.param, tmp_path)
    store = SqliteStore(tmp_path)
    yield store, request.param.stem
    store.close()


def test_it_holds_what_it_held(opened: tuple[SqliteStore, str]) -> None:
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
    expected["d3"] = Document("d3", "Replaced: a river in Zürich.", {"i": 3, "lang": "de"})
    expected["é/ü"] = Document("é/ü", "Ελληνικά 😀", {"nested": {"x": [1, 2.5, None]}})
    page = store.page(name, 0, 100).rows
    assert [document for _, document in page] == list(expected.values())
    keys = [key for block, _ in store.vectors(name) for key in block.tolist()]
    assert {passage.document.id for passage in store.passages(name, keys).values()} == set(expected)
    corpus, size = store.corpus(name), store.size(name)
    assert (corpus.description, corpus.recall_target) == (f"of format {name}", 0.9)
    assert (corpus.fingerprint, corpus.dim) == ("f1", 8)
    assert (size.documents, size.passages) == (len(expected), len(expected))
    assert store.verify(name) == []


def test_it_finds_by_words_fields_and_content(opened: tuple[SqliteStore, str]) -> None:
    store, name = opened
    (key,) = store.words(name, "zurich", 5).keys.tolist()
    assert store.passages(name, [key])[key].document.id == "d3"
    assert store.ids_matching(name, compile_filter({"tags": "b", "even": True})) == ["d2", "d8", "d14"]
    held, none = store.embedded(name, ["Ελληνικά 😀", "new"], None, store.corpus(name).fingerprint or "")
    assert held is not None
    assert held.spans is None
    assert none is None


def test_it_is_written_on(opened: tuple[SqliteStore, str]) -> None:
    store, name = opened
    last = store.last_key(name)
    graves = len(store.tombstones(name, last))
    assert last == 24, "of a document that is no more: never given out again"
    ids = [document.id for _, document in store.page(name, 0, 100).rows]
    store.write(name, [Removal(ids), content([("new", "a river", {})])])
    assert store.last_key(name) == last + 1
    assert len(store.tombstones(name, last)) == graves + len(ids)
    assert store.swap(name, store.corpus(name).fingerprint or "")
    assert store.verify(name) == []


def test_what_was_cut_before_spans_were_counted(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "2-cut.sqlite", tmp_path)
    store = SqliteStore(tmp_path)
    found = store.passages("2-cut", [1, 2, 3, 4]).values()
    spans = [None, Span(2, 10), Span(0, 10), Span(11, 19)]
    assert [passage.span for passage in found] == spans
    assert [passage.document.id for passage in found] == ["whole", "one", "parts", "parts"]
    store.write("2-cut", [Removal(["one", "parts"])])
    assert [passage.span for passage in store.passages("2-cut", [1, 2, 3, 4]).values()] == [None]
    assert store.verify("2-cut") == []
    store.close()


@pytest.mark.parametrize("restored", [False, True])
def test_words_that_were_not_folded_are_indexed_anew(tmp_path: Path, restored: bool) -> None:
    """Of a corpus with stems and a document in three parts, opened as it lies there or restored from a snapshot."""
    given = Path(shutil.copy(FOLDER / "5-words.sqlite", tmp_path))
    with closing(sqlite3.connect(given, isolation_level=None)) as connection:
        connection.execute(
            "UPDATE documents SET checksum = 0 WHERE id = 'whole'"
        )  # is found, and told of when it is read
    if restored:
        shutil.copy(FOLDER / "5-words.sqlite", given)
        (tmp_path / "served").mkdir()
    store = SqliteStore(tmp_path / "served" if restored else tmp_path)
    if restored:
        store.adopt("5-words", given)
    asked = ["機械学習", "financial", "softhyphen connects", "天気", "機械 gone"]
    found = [store.words("5-words", query, 5).keys.tolist() for query in asked]
    assert found == [[1], [2], [3], [4], [1]]
    assert store.corpus("5-words").stemming == "porter"
    assert [line for line in store.verify("5-words") if "whole" not in line] == []
    store.write("5-words", [Removal(["cut"])])
    assert [store.words("5-words", query, 5).keys.tolist() for query in asked] == [[1], [], [], [], [1]]
    store.close()


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


def test_metadata_that_filters_did_not_reach(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "5-nested.sqlite", tmp_path)
    store = SqliteStore(tmp_path)
    for where, ids in (
        ({"by.name": "Austen"}, ["lists", "dots"]),
        ({"by": {"$elemMatch": {"name": "Burney"}}}, ["lists"]),
        ({"at": {"$lt": "2024-03-05T08:30:00Z"}}, ["date"]),
    ):
        assert store.ids_matching("5-nested", compile_filter(where)) == ids
    assert store.verify("5-nested") == []
    store.close()


def test_a_damaged_document_keeps_no_old_corpus_from_being_served(tmp_path: Path) -> None:
    given = Path(shutil.copy(FOLDER / "5-nested.sqlite", tmp_path))
    with closing(sqlite3.connect(given, isolation_level=None)) as connection:
        connection.execute("UPDATE documents SET metadata = '{' WHERE id = 'lists'")
    store = SqliteStore(tmp_path)
    assert store.ids_matching("5-nested", compile_filter({"by.name": "Austen"})) == ["dots"]
    assert "document 'lists' is damaged" in store.verify("5-nested")[0]
    store.close()
