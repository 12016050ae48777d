"""Files that are not what this version serves: named, left alone, and kept where another takes their place."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from serving.corpora.stores.corpus_file import CorpusFile
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Corpus
from serving.errors import Conflict, Damaged, Unhealthy
from serving.operations import failpoints
from tests.serving.corpora.stores.contents import content, filled


def corpus_named(file: Path, name: str) -> None:
    made = CorpusFile(file, new=True)
    made.create(Corpus(name))
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


DAMAGED: list[tuple[Callable[[Path], object], str]] = [
    (lambda file: file.touch(), "contains no corpus"),
    (lambda file: file.write_bytes(bytes(9000)), "contains no corpus"),
    (lambda file: CorpusFile(file, new=True).close(), "contains no corpus"),
    (corrupt, "malformed"),
]
KEPT = "; restore a snapshot over it or delete it, the file is kept as c.sqlite.damaged"
OTHERS: list[tuple[Callable[[Path], object], str]] = [
    (foreign_database, "not a corpus of this server; move it elsewhere and start again$"),
    (lambda file: file.write_bytes(b"notes"), "not a corpus of this server; move it elsewhere and start again$"),
    (later_version, r"was written by a later version \(format 99, known up to \d\): use that version$"),
    (lambda file: corpus_named(file, "d"), "contains the corpus 'd'; rename the file to that name and start again$"),
    (lambda file: file.mkdir(), "directory.*; solve this problem and start again$"),
]


@pytest.mark.parametrize(("make", "says"), [*((make, f"{says}.*{KEPT}$") for make, says in DAMAGED), *OTHERS])
def test_a_file_that_is_not_ours_is_named_and_left_alone(
    tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    """It keeps no other corpus from being served."""
    file = tmp_path / "c.sqlite"
    filled(SqliteStore(tmp_path), "other", content([("a", "b", {})])).close()
    make(file)
    before = None if file.is_dir() else file.read_bytes()
    for _ in range(2):  # what was refused is held by nobody
        store = SqliteStore(tmp_path)
        assert store.names() == ["c", "other"]
        assert store.document("other", "a").text == "b"
        for use, what in ((store.corpus, "c"), (store.create, Corpus("c")), (store.size, "c")):
            with pytest.raises(Unhealthy, match=rf"c\.sqlite: .*{says}"):
                use(what)  # type: ignore[arg-type]
        (said,) = store.verify("c")
        assert re.match(rf"c\.sqlite: .*{says}", said)
        store.close()
    assert before is None or file.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "c.sqlite", "other.sqlite"}


@pytest.mark.parametrize("make", [make for make, _ in OTHERS])
def test_only_a_damaged_file_gives_way(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "c.sqlite")
    corpus_named(tmp_path / "copy", "copy")
    before = {path.name for path in tmp_path.iterdir()} | {"lock"}
    store = SqliteStore(tmp_path)
    with pytest.raises(Damaged, match=r"start again|use that version"):
        store.drop("c")
    with pytest.raises(Damaged, match=r"start again|use that version"):
        store.adopt("c", tmp_path / "copy")
    store.close()
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("make", [make for make, _ in DAMAGED])
def test_a_damaged_file_gives_way_and_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], object]
) -> None:
    contents = []
    for kept in ("c.sqlite.damaged", "c.sqlite.damaged2"):
        make(tmp_path / "c.sqlite")
        (tmp_path / "c.sqlite-wal").write_bytes(b"log")
        contents.append((tmp_path / "c.sqlite").read_bytes())
        store = SqliteStore(tmp_path)
        (tmp_path / "c.sqlite-wal").write_bytes(b"log")
        store.drop("c")
        assert f"is damaged: kept as {kept}\n" in caplog.text
        assert store.names() == []
        store.create(Corpus("c", created=7.0))
        store.drop("c")
        store.close()
        assert [(tmp_path / name).read_bytes() for name in (kept, f"{kept}-wal")] == [contents[-1], b"log"]
    names = {f"{kept}{suffix}" for kept in ("c.sqlite.damaged", "c.sqlite.damaged2") for suffix in ("", "-wal")}
    assert {path.name for path in tmp_path.iterdir()} == {"lock", *names}
    store = SqliteStore(tmp_path)
    assert store.names() == []
    store.close()


@pytest.mark.parametrize("place", ["store.before-adopt", "store.after-adopt"])
def test_a_restore_over_a_damaged_file_that_fails_loses_nothing(tmp_path: Path, place: str) -> None:
    (tmp_path / "c.sqlite").touch()
    corpus_named(tmp_path / "copy", "c")
    store = SqliteStore(tmp_path)
    failpoints.arm({failpoints.VARIABLE: f"{place}=raise"})
    try:
        with pytest.raises(Unhealthy):
            store.adopt("c", tmp_path / "copy")
    finally:
        failpoints.arm({})
    store.close()
    assert (tmp_path / "c.sqlite.damaged").read_bytes() == b""
    store = SqliteStore(tmp_path)
    if place == "store.before-adopt":
        store.adopt("c", tmp_path / "copy")
    assert store.verify("c") == []
    store.close()


@pytest.mark.parametrize("change", ["drop", "adopt"])
def test_a_file_that_is_served_and_found_damaged_is_kept_too(tmp_path: Path, change: str) -> None:
    store = filled(SqliteStore(tmp_path), "c", content([("a", "b", {})]))
    store.copy("c", tmp_path / "copy")
    with closing(sqlite3.connect(tmp_path / "c.sqlite")) as database, database:
        database.execute("UPDATE vectors SET vector = zeroblob(16)")
    with pytest.raises(Damaged, match=f"c.sqlite: the vector of passage 1 is damaged{KEPT}$"):
        list(store.vectors("c"))
    if change == "drop":
        store.drop("c")
        assert store.names() == []
    else:
        store.adopt("c", tmp_path / "copy")
        assert store.verify("c") == []
        store.drop("c")
    store.close()
    with closing(CorpusFile(tmp_path / "c.sqlite.damaged")) as kept:
        assert [document.text for _, document in kept.page(0, 9).rows] == ["b"]
    assert not list(tmp_path.glob("*.damaged2")), "what was restored was whole"


def test_a_corpus_whose_first_page_broke_while_it_is_served_is_restored(tmp_path: Path) -> None:
    """Nothing in it can be folded any more."""
    store = filled(SqliteStore(tmp_path), "c", content([("a", "b", {})]))
    store.copy("c", tmp_path / "copy")
    with (tmp_path / "c.sqlite").open("r+b") as file:
        file.write(b"?" * 100)
    store._file("c").close_if_idle()  # for others that were used since
    broken = (tmp_path / "c.sqlite").read_bytes()
    with pytest.raises(Damaged):
        store.document("c", "a")
    store.adopt("c", tmp_path / "copy")
    assert store.document("c", "a").text == "b" and store.verify("c") == []
    store.close()
    assert (tmp_path / "c.sqlite.damaged").read_bytes() == broken


def test_a_corpus_whose_damage_nobody_has_noticed_is_restored(tmp_path: Path) -> None:
    """By the first attempt, though the uploads that wait for it can't be read."""
    store = filled(SqliteStore(tmp_path), "c", content([("a", "b", {})]))
    store.copy("c", tmp_path / "copy")
    with closing(sqlite3.connect(tmp_path / "c.sqlite")) as database, database:
        database.execute("UPDATE corpora SET stemming = 'snowball'")
    store.adopt("c", tmp_path / "copy")
    assert store.document("c", "a").text == "b" and store.verify("c") == []
    store.close()


def test_what_lies_beside_a_file_that_was_cut_is_left_alone(tmp_path: Path) -> None:
    store = filled(SqliteStore(tmp_path / "live"), "c", content([("a", "b", {})]))
    store.write("c", [content([("d", "e", {})])])
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    store.close()
    (tmp_path / "killed" / "c.sqlite").write_bytes(b"")
    before = {file.name: file.read_bytes() for file in (tmp_path / "killed").iterdir()}
    assert before["c.sqlite-wal"]
    for _ in range(2):
        store = SqliteStore(tmp_path / "killed")
        assert store.names() == ["c"]
        store.close()
    assert {file.name: file.read_bytes() for file in (tmp_path / "killed").iterdir()} == before


def test_a_file_that_came_since_the_start_is_left_alone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    foreign_database(tmp_path / "c.sqlite")
    before = (tmp_path / "c.sqlite").read_bytes()
    with pytest.raises(Conflict, match=r"c\.sqlite"):
        store.create(Corpus("c"))
    assert (tmp_path / "c.sqlite").read_bytes() == before
    store.close()
