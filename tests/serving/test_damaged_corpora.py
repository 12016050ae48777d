"""Tests of corpora with damaged files: their answers, their replacement and their removal."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.corpora.corpora import Corpora
from serving.corpora.filter_language import compile_filter
from serving.corpora.open_corpus import Indexes
from serving.corpora.search import Query, SearchOptions
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Content, Corpus, Document
from serving.errors import Damaged, InsufficientStorage, NotFound, ServiceError, Stopped, Unhealthy
from serving.operations.threads import CancelToken
from serving.service import Service
from tests.serving.corpora.stores.contents import filled

DIM = 4


def content(*names: str) -> Content:
    documents = [Document(name, f"text {name}", {}) for name in names]
    return Content(documents, np.eye(len(names), DIM, dtype=np.float32), "f")


def ids(corpora: Corpora, name: str = "c") -> list[str]:
    (hits,) = corpora.search(name, [Query(None, np.ones(DIM, np.float32))], SearchOptions(k=100)).hits
    return sorted(hit.passage.document.id for hit in hits)


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "corpora", synchronous="OFF")


@pytest.fixture
def corpora(store: SqliteStore, tmp_path: Path) -> Iterator[Corpora]:
    opened = Corpora(filled(store, "c", content("old")), Indexes(tmp_path / "indexes"))
    yield opened
    opened.close()


def made(folder: Path, *names: str) -> None:
    """Create closed corpora of two documents each."""
    store = SqliteStore(folder)
    for name in names:
        filled(store, name, content("one", "two"))
    store.close()


def spoil_a_vector(file: Path) -> None:
    whole = file.read_bytes()
    place = whole.index(content("one", "two").vectors[1].tobytes())
    file.write_bytes(whole[:place] + b"?" + whole[place + 1 :])


@pytest.mark.parametrize(
    ("change", "logged"),
    [
        ("metadata = '[]'", "a document (row 1) is damaged"),
        ("text = CAST(x'61FF' AS TEXT)", "Could not decode to UTF-8"),
    ],
)
def test_the_log_says_of_no_document_which(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str, logged: str
) -> None:
    store = filled(SqliteStore(tmp_path), "c", content("secret"))
    with closing(sqlite3.connect(tmp_path / "c.sqlite")) as connection, connection:
        connection.execute(f"UPDATE documents SET {change}")
    with pytest.raises(Damaged) as told:
        store.document("c", "secret")
    assert ("document 'secret' is damaged" in told.value.message) == change.startswith("metadata")
    assert f"c.sqlite: {logged}" in caplog.text
    assert "secret" not in caplog.text and "a\ufffd" not in caplog.text
    store.close()


def test_a_damaged_corpus_keeps_no_other_from_being_served(tmp_path: Path) -> None:
    made(tmp_path / "corpora", *"abc")
    (tmp_path / "corpora" / "a.sqlite").write_bytes(b"no corpus")
    spoil_a_vector(tmp_path / "corpora" / "b.sqlite")
    corpora = Corpora(SqliteStore(tmp_path / "corpora"), Indexes(tmp_path / "indexes"))
    corpora.warm()
    assert ids(corpora, "c") == ["one", "two"]
    for name in "ab":
        with pytest.raises(Unhealthy, match=rf"{name}\.sqlite"):
            ids(corpora, name)
    assert [(one.corpus.name, one.damage is None) for one in corpora.descriptions(corpora.names())] == [
        ("a", False),
        ("b", False),
        ("c", True),
    ]
    assert "c" in {corpus.name for corpus, _ in corpora.listing()}
    corpora.close()


def test_a_list_whose_caller_left_calls_no_corpus_damaged(tmp_path: Path) -> None:
    made(tmp_path / "corpora", *"ab")
    corpora, token = Corpora(SqliteStore(tmp_path / "corpora"), Indexes(tmp_path / "indexes")), CancelToken()
    corpora.warm()
    corpora.put("b", content("three"))  # The state must be read again.

    def names_and_leaves() -> Iterator[str]:
        yield "a"
        token.cancel()
        yield "b"

    with pytest.raises(Stopped):
        token.run(lambda: corpora.descriptions(names_and_leaves()))
    corpora.close()


def test_what_nobody_would_find_is_not_taken(tmp_path: Path) -> None:
    """Refuse uploads that no search would find, until the corpus is replaced or removed."""
    made(tmp_path / "corpora", "c", "other")
    spoil_a_vector(tmp_path / "corpora" / "c.sqlite")
    corpora = Corpora(SqliteStore(tmp_path / "corpora"), Indexes(tmp_path / "indexes"))
    corpora.warm()
    uses: list[Callable[[], object]] = [
        lambda: ids(corpora),
        lambda: corpora.put("c", content("late")),
        lambda: corpora.delete("c", "one"),
        lambda: corpora.delete_where("c", compile_filter({"x": {"$exists": False}})),
    ]
    for use in uses:
        with pytest.raises(Damaged, match=r"c\.sqlite: the vector of passage 2 is damaged"):
            use()
    assert corpora.corpus("c")[1].documents == 2
    corpora.copy("other", tmp_path / "copy")
    corpora.adopt("c", tmp_path / "copy")
    corpora.put("c", content("late"))
    assert ids(corpora) == ["late", "one", "two"]
    corpora.close()


def test_damage_that_a_read_found_is_listed_and_keeps_writes_out(tmp_path: Path) -> None:
    """Refuse uploads that would be lost when a snapshot is restored, until then."""
    made(tmp_path / "corpora", "c", "other")
    with closing(sqlite3.connect(tmp_path / "corpora" / "c.sqlite")) as connection, connection:
        connection.execute("UPDATE documents SET metadata = '[]' WHERE id = 'two'")
    corpora = Corpora(SqliteStore(tmp_path / "corpora"), Indexes(tmp_path / "indexes"))
    corpora.warm()
    with pytest.raises(Damaged, match="'two' is damaged"):
        corpora.page("c", None, 10)
    uses: list[Callable[[], object]] = [
        lambda: corpora.put("c", content("late")),
        lambda: corpora.delete("c", "one"),
    ]
    for use in uses:
        with pytest.raises(Damaged, match=r"'two' is damaged.*restore a snapshot"):
            use()
    assert [one.damage is None for one in corpora.descriptions(["c", "other"])] == [False, True]
    assert corpora.document("c", "one").text == "text one", "what is whole can still be read"
    corpora.copy("other", tmp_path / "copy")
    corpora.adopt("c", tmp_path / "copy")
    corpora.put("c", content("late"))
    assert [one.damage for one in corpora.descriptions(["c"])] == [None]
    corpora.close()


@pytest.mark.parametrize("how", ["dropped", "restored"])
def test_the_index_of_a_damaged_corpus_goes_with_it(tmp_path: Path, how: str) -> None:
    made(tmp_path / "corpora", "c", "other")
    for name in ("c", "other"):
        kept = tmp_path / "indexes" / name / "00000001-aa"
        kept.mkdir(parents=True)
        (kept / "index.faiss").write_bytes(b"of another time")
    (tmp_path / "corpora" / "c.sqlite").write_bytes(b"")
    corpora = Corpora(SqliteStore(tmp_path / "corpora"), Indexes(tmp_path / "indexes"))
    if how == "dropped":
        corpora.drop("c")
    else:
        corpora.copy("other", tmp_path / "copy")
        corpora.adopt("c", tmp_path / "copy")
        assert ids(corpora) == ["one", "two"]
    assert not (tmp_path / "indexes" / "c" / "00000001-aa").exists()
    assert (tmp_path / "indexes" / "other" / "00000001-aa").exists()
    corpora.close()


@pytest.mark.parametrize("error", [Unhealthy("c.sqlite: disk I/O error"), InsufficientStorage("the disk is full")])
def test_what_passes_keeps_no_write_waiting(
    corpora: Corpora, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, error: ServiceError
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(store, "vectors", fail)
        corpora.warm()
        with pytest.raises(type(error)):
            ids(corpora)
        corpora.put("c", content("late"))
    assert ids(corpora) == ["late", "old"]


def test_a_corpus_that_can_be_read_again_is_written_again(
    corpora: Corpora, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Damaged("c.sqlite: malformed")

    with monkeypatch.context() as patch:
        patch.setattr(store, "vectors", fail)
        with pytest.raises(Damaged):
            ids(corpora)
        with pytest.raises(Damaged):
            corpora.put("c", content("late"))
    assert ids(corpora) == ["old"]
    corpora.put("c", content("late"))
    assert ids(corpora) == ["late", "old"]


@pytest.mark.parametrize("change", ["adopt", "drop"])
def test_a_corpus_that_was_refused_is_replaced_and_goes(tmp_path: Path, change: str) -> None:
    made(tmp_path / "corpora", "c", "other")
    (tmp_path / "corpora" / "c.sqlite").write_bytes(b"")
    corpora = Corpora(SqliteStore(tmp_path / "corpora"), Indexes(tmp_path / "indexes"))
    corpora.warm()
    corpora.copy("other", tmp_path / "copy")
    if change == "adopt":
        corpora.adopt("c", tmp_path / "copy")
    else:
        corpora.drop("c")
        with pytest.raises(NotFound):
            ids(corpora)
        assert corpora.create(Corpus("c"))
    corpora.put("c", content("late"))
    assert ids(corpora) == (["late", "one", "two"] if change == "adopt" else ["late"])
    corpora.close()
    assert (tmp_path / "corpora" / "c.sqlite.damaged").read_bytes() == b""


def test_a_damaged_corpus_is_deleted_by_its_address(
    make_service: Callable[..., Service], wait_until_ready: Callable[[TestClient], None], tmp_path: Path
) -> None:
    made(tmp_path / "corpora", "c", "foreign")
    (tmp_path / "corpora" / "c.sqlite").write_bytes(b"")
    (tmp_path / "corpora" / "foreign.sqlite").write_bytes(b"notes")
    with TestClient(create_app(make_service())) as client:
        wait_until_ready(client)
        answer = client.put("/corpora/c")
        assert (answer.status_code, "kept as c.sqlite.damaged" in answer.json()["error"]) == (503, True)
        assert client.delete("/corpora/c").status_code == 204
        assert client.put("/corpora/c").status_code == 201
        assert client.delete("/corpora/foreign").status_code == 503
        assert client.delete("/corpora/nope").status_code == 404
