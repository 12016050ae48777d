"""Every store is a dictionary; the one on disk is the same dictionary after it is opened again."""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from serving.errors import Conflict, NotFound
from serving.ports import Content, Corpus, Document, Store, StoreError
from serving.stores import STORES
from serving.stores.corpus_file import CorpusFile
from serving.stores.migrations import mark
from serving.stores.sqlite import SqliteStore

DIM = 4
ids = st.sampled_from(["a", "b", "c", "d/e", "é"])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
metadata = st.dictionaries(st.sampled_from("xyz"), st.none() | st.booleans() | st.integers(-9, 9) | texts, max_size=3)


def content(rows: list[tuple[str, str, dict[str, Any]]], fingerprint: str = "f") -> Content:
    vectors = np.array([[len(text), hash(name) % 7, i, 1] for i, (name, text, _) in enumerate(rows)], dtype=np.float32)
    return Content([Document(*row) for row in rows], vectors.reshape(-1, DIM), fingerprint)


class AsADictionary(RuleBasedStateMachine):
    """One corpus against a plain dict; the order of keys is the order of writing."""

    open: Callable[[Path], Store]
    persistent: bool

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.store = type(self).open(Path(self.folder.name))
        self.store.create(Corpus("c"))
        self.held: dict[str, tuple[Document, list[float]]] = {}

    @rule(rows=st.lists(st.tuples(ids, texts, metadata), min_size=1, max_size=5, unique_by=lambda row: row[0]))
    def put(self, rows: list[tuple[str, str, dict[str, Any]]]) -> None:
        new = content(rows)
        before = {self.store.key("c", name) for name in self.held}
        change = self.store.put("c", new)
        replaced = {name for name, _, _ in rows} & self.held.keys()
        assert len(change.removed) == len(replaced)
        assert set(change.removed.tolist()) <= before
        assert min(change.added) > max(before | {0})
        for document, vector in zip(new.documents, new.vectors, strict=True):
            self.held.pop(document.id, None)
            self.held[document.id] = (document, vector.tolist())

    @rule(names=st.sets(ids))
    def delete(self, names: set[str]) -> None:
        present = names & self.held.keys()
        self.store.delete("c", [self.store.key("c", name) for name in present])
        for name in present:
            del self.held[name]

    @rule()
    def reopen(self) -> None:
        if self.persistent:
            self.store.close()
            self.store = type(self).open(Path(self.folder.name))

    @rule()
    def another_encoder(self) -> None:
        if self.held:
            with pytest.raises(Conflict):
                self.store.put("c", content([("z", "z", {})], "other"))

    @invariant()
    def same(self) -> None:
        rows = self.store.page("c", 0, 100)
        found = [document for _, document in rows]
        assert found == [document for document, _ in self.held.values()]
        assert [one for _, one in self.store.metadata("c")] == [document.metadata for document in found]
        vectors = dict(pair for block in self.store.vectors("c") for pair in zip(*block, strict=True))
        assert {key: vectors[key].tolist() for key in vectors} == {
            key: self.held[document.id][1] for key, document in rows
        }
        assert [self.store.document("c", one.id) for one in found] == found
        some = [key for key, _ in rows][::2]
        assert self.store.documents("c", [*some, 10**6]) == {key: one for key, one in rows if key in some}
        assert [key for keys, _ in self.store.vectors("c", some) for key in keys] == some
        assert self.store.size("c").documents == len(self.held)

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


@pytest.mark.parametrize("name", STORES)
def test_store_is_a_dictionary(name: str) -> None:
    machine = type(name, (AsADictionary,), {"open": staticmethod(STORES[name]), "persistent": name == "sqlite"})
    run_state_machine_as_test(machine, settings=settings(max_examples=25, stateful_step_count=15, deadline=None))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return STORES[request.param](tmp_path)


def test_create_describe_drop(store: Store) -> None:
    assert store.create(Corpus("b", "first", 0.9, 1.0))
    assert not store.create(Corpus("b", None, 0.5, 2.0))
    assert store.corpus("b") == Corpus("b", "first", 0.5, 1.0)
    assert store.create(Corpus("a"), content([("x", "y", {})]))
    assert store.names() == ["a", "b"]
    assert (store.corpus("a").fingerprint, store.corpus("a").dim) == ("f", DIM)
    store.drop("a")
    assert store.names() == ["b"]
    assert store.create(Corpus("a"))
    assert store.size("a").documents == 0


def test_a_missing_corpus_or_document(store: Store) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.corpus("c"),
        lambda: store.drop("c"),
        lambda: store.put("c", content([("a", "b", {})])),
        lambda: store.size("c"),
        lambda: store.page("c", 0, 1),
    ]
    for call in calls:
        with pytest.raises(NotFound, match="no corpus 'c'"):
            call()
    store.create(Corpus("c"))
    with pytest.raises(NotFound, match="no document 'x'"):
        store.key("c", "x")
    with pytest.raises(NotFound, match="no document 'x'"):
        store.document("c", "x")


def test_an_emptied_corpus_takes_another_encoder(store: Store) -> None:
    store.create(Corpus("c"), content([("a", "b", {})]))
    store.delete("c", [store.key("c", "a")])
    store.put("c", content([("a", "b", {})], "g"))
    assert store.corpus("c").fingerprint == "g"


def test_creation_with_content_is_all_or_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    with pytest.raises(sqlite3.IntegrityError):
        store.create(Corpus("c"), content([("same", "a", {}), ("same", "b", {})]))
    assert store.names() == []
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_what_a_killed_creation_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / "empty.sqlite").touch()
    mark(tmp_path / "marked.sqlite")
    CorpusFile(tmp_path / "migrated.sqlite").close()
    retired = CorpusFile(tmp_path / "retired.sqlite")
    retired.create(Corpus("retired"), content([("a", "b", {})]))
    retired.retire()
    SqliteStore(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def corpus_named(file: Path, name: str) -> None:
    made = CorpusFile(file)
    made.create(Corpus(name), None)
    made.close()


def foreign_database(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE corpora (name)")


def later_version(file: Path) -> None:
    corpus_named(file, "c")
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA user_version = 99")


def corrupt(file: Path) -> None:
    corpus_named(file, "c")
    file.write_bytes(file.read_bytes()[:100] + b"?" * 9000)


REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (foreign_database, "not a corpus of this server"),
    (lambda file: file.write_bytes(b"notes"), "not a corpus of this server"),
    (later_version, "written by a later version"),
    (corrupt, "malformed"),
    (lambda file: corpus_named(file, "d"), "holds the corpus 'd'"),
    (lambda file: file.mkdir(), "directory"),
]


@pytest.mark.parametrize(("make", "says"), REFUSED)
def test_a_file_that_is_not_ours_is_named_and_left_alone(
    tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    file = tmp_path / "c.sqlite"
    make(file)
    before = None if file.is_dir() else file.read_bytes()
    for _ in range(2):  # what was refused holds neither the file nor the folder
        with pytest.raises(StoreError, match=rf"{re.escape(str(file))}: .*{says}"):
            SqliteStore(tmp_path)
    assert before is None or file.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "c.sqlite"}


def test_a_file_that_came_since_the_start_is_left_alone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    foreign_database(tmp_path / "c.sqlite")
    before = (tmp_path / "c.sqlite").read_bytes()
    with pytest.raises(Conflict, match=r"c\.sqlite"):
        store.create(Corpus("c"))
    assert (tmp_path / "c.sqlite").read_bytes() == before
    store.close()


@pytest.mark.parametrize("obstacle", ["data", "data/lock"])
def test_a_folder_that_cannot_be_used(tmp_path: Path, obstacle: str) -> None:
    folder = tmp_path / "data"
    if obstacle == "data":
        folder.touch()
    else:
        (tmp_path / obstacle).mkdir(parents=True)
    with pytest.raises(StoreError, match=re.escape(str(folder))):
        SqliteStore(folder)


def test_a_file_closed_under_its_readers(tmp_path: Path) -> None:
    file = CorpusFile(tmp_path / "c.sqlite")
    file.create(Corpus("c"), content([("a", "b", {})]))
    file.retire()
    calls: list[Callable[[], object]] = [
        file.corpus,
        file.size,
        lambda: file.document("a"),
        lambda: list(file.vectors(None)),
        lambda: file.put(content([("a", "b", {})])),
        lambda: file.delete([1]),
    ]
    for call in calls:
        with pytest.raises(NotFound, match="no corpus 'c'"):
            call()


def test_two_servers_on_one_folder(tmp_path: Path) -> None:
    held = SqliteStore(tmp_path)
    with pytest.raises(StoreError, match="in use by another server"):
        SqliteStore(tmp_path)
    held.close()
    SqliteStore(tmp_path).close()


def test_durability_settings(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.create(Corpus("c"))
    writer = store._file("c")._writer
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()
