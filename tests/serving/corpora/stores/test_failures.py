"""A disk that fails: nothing half done, reads go on, and the next write works when the cause is gone."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Corpus, Removal
from serving.errors import Damaged, InsufficientStorage, ServiceError, Unhealthy
from serving.operations import failpoints
from tests.serving.corpora.stores.contents import content, filled


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = filled(SqliteStore(tmp_path / "corpora"), "c", content([("a", "first", {})]))
    yield opened
    opened.close()


@contextmanager
def armed(spec: str) -> Iterator[None]:
    failpoints.arm({failpoints.VARIABLE: spec})
    try:
        yield
    finally:
        failpoints.arm({})


@contextmanager
def full(store: SqliteStore, name: str, room: int = 0) -> Iterator[None]:
    """SQLite's own limit says what the disk would say, which has room for so many pages."""
    with store._file(name).maintaining() as writer:
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        (most,) = writer.execute("PRAGMA max_page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count = {pages + room}")
        yield
        writer.execute(f"PRAGMA max_page_count = {most}")


def write(store: SqliteStore, name: str = "b") -> None:
    store.write("c", [content([(name, "word " * 20_000, {})]), Removal(["a"])])


def test_a_full_disk_is_a_507(store: SqliteStore) -> None:
    with full(store, "c"):
        with pytest.raises(InsufficientStorage, match=r"c\.sqlite: database or disk is full"):
            write(store)
        assert [document.id for _, document in store.page("c", 0, 9).rows] == ["a"]
    write(store)
    assert [document.id for _, document in store.page("c", 0, 9).rows] == ["b"]
    assert store.verify("c") == []


def test_a_write_that_fills_the_disk_gives_its_room_back(store: SqliteStore, tmp_path: Path) -> None:
    """Deletions in other corpora need it."""
    log = tmp_path / "corpora" / "c.sqlite-wal"
    with full(store, "c", room=500):
        before = log.stat().st_size
        with pytest.raises(InsufficientStorage):
            store.write("c", [content([(f"d{i}", "0123456789" * 10_000, {}) for i in range(60)])])
        assert log.stat().st_size == before
        write(store)
    assert [document.id for _, document in store.page("c", 0, 9).rows] == ["b"]
    store.close()
    again = SqliteStore(tmp_path / "corpora")
    assert again.verify("c") == []
    again.close()


@pytest.mark.parametrize(
    ("spec", "told"),
    [("ENOSPC", InsufficientStorage), ("EDQUOT", InsufficientStorage), ("EIO", Unhealthy), ("EROFS", Unhealthy)],
)
def test_what_fails_before_the_commit_changes_nothing(store: SqliteStore, spec: str, told: type[ServiceError]) -> None:
    with armed(f"store.before-commit=raise:{spec}"):
        with pytest.raises(told, match=r"c\.sqlite: "):
            write(store)
        assert [document.id for _, document in store.page("c", 0, 9).rows] == ["a"]
        assert store.words("c", "first", 5).keys.tolist() == [1]
    write(store)
    assert [document.id for _, document in store.page("c", 0, 9).rows] == ["b"]


def test_what_cannot_be_undone_is_never_committed(store: SqliteStore) -> None:
    def no_rollback(action: int, what: str | None, *_: str | None) -> int:
        denied = (action, what) == (sqlite3.SQLITE_TRANSACTION, "ROLLBACK")
        return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

    with store._file("c").maintaining() as writer:
        writer.set_authorizer(no_rollback)
    with armed("store.before-commit=raise:EIO"), pytest.raises(Unhealthy):
        store.write("c", [content([("half", "half", {})])])
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        writer.execute("SELECT 1")
    write(store)
    assert [document.id for _, document in store.page("c", 0, 9).rows] == ["b"]
    assert store.verify("c") == []


@pytest.mark.parametrize("place", ["before-commit", "before-create", "after-create"])
def test_a_creation_that_fails_leaves_nothing(store: SqliteStore, tmp_path: Path, place: str) -> None:
    before = set((tmp_path / "corpora").iterdir())
    with armed(f"store.{place}=raise:ENOSPC"), pytest.raises(InsufficientStorage, match=r"e\.sqlite.*: .*No space"):
        store.create(Corpus("e"))
    assert store.names() == ["c"]
    assert set((tmp_path / "corpora").iterdir()) == before
    assert store.create(Corpus("e"))


def test_a_file_that_somebody_removed_is_not_made_anew(store: SqliteStore, tmp_path: Path) -> None:
    file = tmp_path / "corpora" / "c.sqlite"
    file.unlink()
    with pytest.raises(Unhealthy, match=r"c\.sqlite: unable to open"):
        store.page("c", 0, 9)
    assert not file.exists()


@pytest.mark.parametrize("place", ["store.before-adopt", "store.before-copy", "store.before-drop", "store.before-swap"])
def test_what_fails_before_a_change_of_files_changes_nothing(store: SqliteStore, tmp_path: Path, place: str) -> None:
    store.copy("c", tmp_path / "copy")
    acts: dict[str, Callable[[], object]] = {
        "store.before-adopt": lambda: store.adopt("c", tmp_path / "copy"),
        "store.before-copy": lambda: store.copy("c", tmp_path / "another"),
        "store.before-drop": lambda: store.drop("c"),
        "store.before-swap": lambda: store.swap("c", "f"),
    }
    with armed(f"{place}=raise:EIO"), pytest.raises(Unhealthy, match=r"c\.sqlite"):
        acts[place]()
    assert store.names() == ["c"]
    assert [document.id for _, document in store.page("c", 0, 9).rows] == ["a"]
    write(store)
    assert store.verify("c") == []


def test_a_rename_that_fails_changes_nothing(store: SqliteStore) -> None:
    with armed("store.before-rename=raise:EIO"), pytest.raises(Unhealthy, match=r"c\.sqlite"):
        store.rename("c", "d")
    assert (store.names(), store.corpus("c").name) == (["c"], "c")
    write(store)
    store.rename("c", "d")
    assert [document.id for _, document in store.page("d", 0, 9).rows] == ["b"]


@pytest.mark.parametrize(("change", "commit"), [("rename", 2), ("adopt", 3)])
def test_a_moved_file_that_can_not_be_opened_is_served_after_a_restart(
    store: SqliteStore, tmp_path: Path, change: str, commit: int
) -> None:
    store.copy("c", tmp_path / "copy")
    with armed(f"store.before-commit=raise:EMFILE@{commit}"):  # earlier commits are those before the move
        store.rename("c", "d") if change == "rename" else store.adopt("d", tmp_path / "copy")
    assert "d" in store.names()
    with pytest.raises(Unhealthy, match=r"d\.sqlite: .*Too many open files.*; solve this problem and start again"):
        store.corpus("d")
    store.close()
    again = SqliteStore(tmp_path / "corpora")
    assert [document.id for _, document in again.page("d", 0, 9).rows] == ["a"]
    again.close()


def test_a_restore_on_a_full_disk_does_not_blame_the_file(store: SqliteStore, tmp_path: Path) -> None:
    store.copy("c", tmp_path / "copy")
    with armed("store.before-commit=raise:ENOSPC"), pytest.raises(InsufficientStorage, match=r"copy: .*No space"):
        store.adopt("d", tmp_path / "copy")
    assert store.names() == ["c"]
    store.adopt("d", tmp_path / "copy")
    assert store.verify("d") == []


RENAME = """
import os, sys
from pathlib import Path
from serving.corpora.stores.sqlite import SqliteStore
from serving.operations import failpoints
failpoints.arm(os.environ)
SqliteStore(Path(sys.argv[1])).rename("c", "d")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("place", "name"), [("before", "c"), ("after", "d")])
def test_a_kill_in_a_rename_leaves_one_of_the_names(tmp_path: Path, place: str, name: str) -> None:
    folder = tmp_path / "corpora"
    store = filled(SqliteStore(folder), "c", content([("a", "first", {})]))
    generation = store.corpus("c").generation
    store.close()
    armed = {**os.environ, failpoints.VARIABLE: f"store.{place}-rename=kill"}
    assert subprocess.run([sys.executable, "-c", RENAME, folder], env=armed, check=False).returncode == -9
    for _ in range(2):
        store = SqliteStore(folder)
        assert (store.names(), store.corpus(name).name) == ([name], name)
        assert store.corpus(name).generation == generation
        assert store.verify(name) == []
        store.close()


def test_a_row_of_unknown_stemming_is_damage(store: SqliteStore) -> None:
    with store._file("c").writing() as writer:
        writer.execute("UPDATE corpora SET stemming = 'snowball'")
    with pytest.raises(Damaged, match=r"c\.sqlite: .*unknown stemming: 'snowball'"):
        store.corpus("c")


def test_a_copy_that_cannot_be_written(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(Unhealthy, match=r"c\.sqlite: unable to open database: .*nowhere/copy"):
        store.copy("c", tmp_path / "nowhere" / "copy")
    assert store.verify("c") == []


def test_no_more_files_may_be_opened(store: SqliteStore) -> None:
    connections = store._file("c")
    store.corpus("c")  # one reader is open from now on
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 2, hard))
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with suppress(OSError):
            while True:
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        with connections.reading() as reader:
            assert reader.execute("SELECT id FROM documents").fetchall() == [("a",)]
            with pytest.raises(Unhealthy, match=r"c\.sqlite: unable to open"):
                store.page("c", 0, 9)
        assert [document.id for _, document in store.page("c", 0, 9).rows] == ["a"]
    assert [document.id for _, document in store.page("c", 0, 9).rows] == ["a"]
    write(store)
