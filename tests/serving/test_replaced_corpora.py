"""Tests of corpora that are restored, re-embedded, copied, emptied and removed while others use them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from models.runtimes.base import Floats
from serving.corpora import corpora as rooms
from serving.corpora import open_corpus
from serving.corpora.corpora import Corpora
from serving.corpora.filter_language import compile_filter
from serving.corpora.indexes import live as opened
from serving.corpora.indexes import saved
from serving.corpora.indexes.live import LiveIndex
from serving.corpora.open_corpus import Indexes
from serving.corpora.ports import Ranking
from serving.corpora.search import Query, SearchOptions
from serving.corpora.stores import sqlite
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Content, Corpus, Document, Keys, Size
from serving.errors import Conflict, NotFound, Unhealthy
from serving.operations import files
from tests.conftest import PATIENCE
from tests.serving.corpora.stores.contents import filled

DIM = 4
ANY = np.ones(DIM, np.float32)
EVERYTHING = compile_filter({"seed": {"$gte": 0}})


def content(*names: str, seed: int = 0, fingerprint: str = "f") -> Content:
    drawn = np.random.default_rng(len(names)).standard_normal((len(names), DIM)).astype(np.float32)
    vectors = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return Content([Document(name, f"text {name}", {"seed": seed}) for name in names], vectors, fingerprint)


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "corpora", synchronous="OFF")


@pytest.fixture
def corpora(store: SqliteStore, tmp_path: Path) -> Iterator[Corpora]:
    opened = Corpora(filled(store, "c", content("old")), Indexes(tmp_path / "indexes"))
    yield opened
    opened.close()


@pytest.fixture
def copy(corpora: Corpora, tmp_path: Path) -> Path:
    """Return a copy of a corpus that contains `new`."""
    corpora.create(Corpus("other"))
    corpora.put("other", content("new"))
    corpora.copy("other", tmp_path / "copy")
    corpora.drop("other")
    return tmp_path / "copy"


def ids(corpora: Corpora, name: str = "c") -> list[str]:
    (hits,) = corpora.search(name, [Query(None, ANY)], SearchOptions(k=100)).hits
    return sorted(hit.passage.document.id for hit in hits)


class Halt:
    """Function that begins and then waits for permission to continue."""

    def __init__(self, work: Callable[..., object]) -> None:
        self._work = work
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *arguments: object) -> object:
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        return self._work(*arguments)


@pytest.fixture
def checking(monkeypatch: pytest.MonkeyPatch) -> Halt:
    """Halt the check of a file that is to be adopted."""
    halt = Halt(sqlite.prepare)
    monkeypatch.setattr(sqlite, "prepare", halt)
    return halt


def test_nobody_waits_while_a_new_file_is_checked(corpora: Corpora, copy: Path, checking: Halt) -> None:
    with ThreadPoolExecutor(1) as threads:
        adopting = threads.submit(corpora.adopt, "c", copy)
        assert checking.begun.wait(PATIENCE)
        corpora.put("c", content("more", "late"))
        assert ids(corpora) == ["late", "more", "old"]
        assert corpora.description("c").size.documents == 3
        corpora.create(Corpus("another"))
        checking.go_on.set()
        adopting.result(PATIENCE)
    assert ids(corpora) == ["new"]


@pytest.fixture(params=["in memory", "in a file"])
def reading_beside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Halt:
    """Halt the start of an index, which reads vectors that are not served yet."""
    if request.param == "in a file":
        monkeypatch.setattr(saved, "ROOM", 2)
    halt = Halt(saved.read)
    monkeypatch.setattr(open_corpus, "read", halt)
    return halt


def test_nobody_waits_while_the_index_of_a_restored_corpus_is_read(
    corpora: Corpora, tmp_path: Path, reading_beside: Halt
) -> None:
    corpora.create(Corpus("other"))
    corpora.put("other", content("new", "newer", "newest"))
    corpora.copy("other", tmp_path / "copy")
    with ThreadPoolExecutor(1) as threads:
        adopting = threads.submit(corpora.adopt, "c", tmp_path / "copy")
        assert reading_beside.begun.wait(PATIENCE)
        corpora.put("c", content("more"))
        assert ids(corpora) == ["more", "old"]
        reading_beside.go_on.set()
        adopting.result(PATIENCE)
    assert corpora.named("c").live is not None
    assert ids(corpora) == ["new", "newer", "newest"]
    corpora.put("c", content("late"))
    corpora.delete("c", "new")
    assert ids(corpora) == ["late", "newer", "newest"]
    assert left_beside(tmp_path) == []


def test_nobody_waits_while_the_index_of_another_encoder_is_read(
    corpora: Corpora, store: SqliteStore, tmp_path: Path, reading_beside: Halt
) -> None:
    """Write and remove meanwhile. The new index has these changes, although the serving index is built without it."""

    def embed() -> None:
        rows = corpora.stale("c", "g", 10)
        corpora.refresh("c", "g", [key for key, _ in rows], np.eye(len(rows), 9, dtype=np.float32))

    corpora.put("c", content("gone", "replaced", "kept"))
    embed()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(corpora.read_fresh, "c")
        assert reading_beside.begun.wait(PATIENCE)
        corpora.delete("c", "gone")
        corpora.put("c", content("replaced", "late"))
        assert ids(corpora) == ["kept", "late", "old", "replaced"]
        reading_beside.go_on.set()
        beside = waiting.result(PATIENCE)
    live = corpora.named("c").live
    assert live is not None
    live.build_now()
    assert not corpora.swap("c", "g", beside), "some are not embedded yet"
    assert ids(corpora) == ["kept", "late", "old", "replaced"]
    embed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened, "read", None)  # Nothing is read again.
        assert corpora.swap("c", "g", beside)
        (hits,) = corpora.search("c", [Query(None, np.ones(9, np.float32))], SearchOptions(k=100)).hits
    assert sorted(hit.passage.document.id for hit in hits) == ["kept", "late", "old", "replaced"]
    assert beside is not None
    beside.discard()
    assert left_beside(tmp_path) == []
    corpora.close()
    with closing(Corpora(SqliteStore(tmp_path / "corpora"), Indexes(tmp_path / "indexes"))) as again:
        (hits,) = again.search("c", [Query(None, np.ones(9, np.float32))], SearchOptions(k=100)).hits
    assert sorted(hit.passage.document.id for hit in hits) == ["kept", "late", "old", "replaced"]


def left_beside(folder: Path) -> list[Path]:
    return list((folder / "indexes" / ".beside").glob("*"))


def test_what_a_killed_server_read_beside_is_swept(tmp_path: Path) -> None:
    left = tmp_path / "indexes" / ".beside" / "1234" / "vectors.f32"
    left.parent.mkdir(parents=True)
    left.touch()
    Indexes(tmp_path / "indexes")
    assert left_beside(tmp_path) == []


def test_dropped_and_restored_at_once(corpora: Corpora, copy: Path, checking: Halt) -> None:
    """Remove and restore at the same time, in either order. Neither waits for the other forever."""
    with ThreadPoolExecutor(2) as threads:
        adopting = threads.submit(corpora.adopt, "c", copy)
        assert checking.begun.wait(PATIENCE)
        with corpora.named("c").locked():
            checking.go_on.set()
            dropping = threads.submit(corpora.drop, "c")
        dropping.result(PATIENCE)
        assert adopting.exception(20) is None or isinstance(adopting.exception(), NotFound)
    if corpora.names():
        assert ids(corpora) == ["new"]


def test_what_was_created_meanwhile_is_replaced_too(corpora: Corpora, copy: Path, checking: Halt) -> None:
    with ThreadPoolExecutor(1) as threads:
        adopting = threads.submit(corpora.adopt, "d", copy)
        assert checking.begun.wait(PATIENCE)
        corpora.create(Corpus("d"))
        corpora.put("d", content("mine"))
        assert ids(corpora, "d") == ["mine"]
        checking.go_on.set()
        adopting.result(PATIENCE)
    assert ids(corpora, "d") == ["new"]


def test_who_waits_for_the_new_file_goes_on_with_it(
    corpora: Corpora, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = Halt(files.move)
    monkeypatch.setattr(sqlite, "move", moving)
    with ThreadPoolExecutor(3) as threads:
        adopting = threads.submit(corpora.adopt, "c", copy)
        assert moving.begun.wait(PATIENCE)
        writing, searching = threads.submit(corpora.put, "c", content("late")), threads.submit(ids, corpora)
        while not corpora.named("c")._pending:
            pass
        moving.go_on.set()
        adopting.result(PATIENCE)
        writing.result(PATIENCE)
        assert set(searching.result(PATIENCE)) <= {"new", "late"}
    assert ids(corpora) == ["late", "new"]


@pytest.mark.parametrize("change", ["adopt", "drop"])
def test_a_copy_under_way_keeps_only_its_end_waiting(
    corpora: Corpora, store: SqliteStore, copy: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    copying = Halt(store.copy)
    monkeypatch.setattr(store, "copy", copying)
    with ThreadPoolExecutor(2) as threads:
        copied = threads.submit(corpora.copy, "c", copy.with_name("snapshot"))
        assert copying.begun.wait(PATIENCE)
        changing = threads.submit(corpora.adopt, "c", copy) if change == "adopt" else threads.submit(corpora.drop, "c")
        corpora.put("c", content("more"))
        assert ids(corpora) == ["more", "old"]
        corpora.create(Corpus("another"))
        assert not changing.done()
        copying.go_on.set()
        _, size = copied.result(PATIENCE)
        changing.result(PATIENCE)
    assert size == Size(2, size.bytes, 2)
    assert corpora.names() == (["another", "c"] if change == "adopt" else ["another"])


def test_a_corpus_that_could_not_be_dropped_is_still_there(
    corpora: Corpora, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise Unhealthy("read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(store, "drop", fail)
        with pytest.raises(Unhealthy):
            corpora.drop("c")
    assert ids(corpora) == ["old"]
    corpora.drop("c")
    assert corpora.names() == []


def test_an_encoder_that_comes_during_a_search(corpora: Corpora, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to vectors of another width during a search. The search reports this instead of failing."""
    compute = LiveIndex.search

    def swapped(self: LiveIndex, queries: Floats, k: int, allowed: Keys | None = None, **how: bool) -> list[Ranking]:
        found = compute(self, queries, k, allowed, **how)
        if corpora.corpus("c")[0].fingerprint == "f":
            rows = corpora.stale("c", "g", 10)
            corpora.refresh("c", "g", [key for key, _ in rows], np.eye(len(rows), 9, dtype=np.float32))
            assert corpora.swap("c", "g")
        return [one._replace(keys=one.keys[:0], scores=one.scores[:0]) for one in found]

    monkeypatch.setattr(LiveIndex, "search", swapped)
    with pytest.raises(Conflict, match=r"fingerprint g\b"):
        corpora.search("c", [Query("text", ANY)], SearchOptions(mode="hybrid"), "f")


def test_the_encoder_that_it_has_changes_nothing(corpora: Corpora) -> None:
    corpora.warm()
    before = corpora.named("c").live
    assert corpora.swap("c", "f")
    assert corpora.named("c").live is before


def test_vectors_of_another_encoder_are_not_known(corpora: Corpora) -> None:
    known, unknown = (corpora.embedded("c", ["text old"], None, fingerprint)[0] for fingerprint in "fg")
    assert known is not None
    assert unknown is None


def test_a_filter_deletes_what_matches_when_it_goes(
    corpora: Corpora, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "REMOVED_TOGETHER", 2)
    corpora.put("c", content("a", "b", "d", "e", "kept"))
    matching = store.ids_matching

    def then_replaced(*asked: object) -> list[str]:
        found = matching(*asked)  # type: ignore[arg-type]
        corpora.put("c", content("kept", seed=-1))
        corpora.delete("c", "a")
        return found

    monkeypatch.setattr(store, "ids_matching", then_replaced)
    assert corpora.delete_where("c", EVERYTHING) == 4
    assert ids(corpora) == ["kept"]
