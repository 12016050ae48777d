"""A copy is of one moment; what is adopted is whole, or nothing has changed."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from serving.corpora.ports import StoreError
from serving.corpora.stores import connections
from serving.corpora.stores.corpus_file import CorpusFile
from serving.corpora.stores.sqlite import SqliteStore, prepare
from serving.corpora.values import Chunking, Removal
from tests.serving.corpora.stores.contents import Row, content, filled


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    rows: list[Row] = [(f"d{i}", f"text {i}", {"i": i}) for i in range(50)]
    opened = filled(SqliteStore(tmp_path / "corpora"), "c", content(rows, chunking=Chunking(1, 0)))
    yield opened
    opened.close()


def ids(store: SqliteStore, name: str) -> list[str]:
    return [document.id for _, document in store.page(name, 0, 10**6).rows]


def test_a_copy_under_writes_is_one_moment(store: SqliteStore, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            store.write("c", [content([("a", f"{number}", {}), ("b", f"{number}", {})])])
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for i in range(10):
            _, size = store.copy("c", tmp_path / f"copy{i}")
            store.adopt(f"copy{i}", tmp_path / f"copy{i}")
            copied = {document.id: document.text for _, document in store.page(f"copy{i}", 0, 100).rows}
            assert copied.get("a") == copied.get("b")
            assert size == store.size(f"copy{i}")
            assert store.verify(f"copy{i}") == []
    finally:
        stop.set()
        writer.join()


def test_the_check_of_a_file_stops_when_it_is_told_to(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "READ_STEPS", 1)
    store.copy("c", tmp_path / "copy")
    with pytest.raises(StoreError):
        prepare("d", tmp_path / "copy", stop=lambda: True)
    prepare("d", tmp_path / "copy", stop=lambda: False)


@pytest.mark.slow
def test_adoption_under_readers_and_writers_shows_the_old_or_the_new(store: SqliteStore, tmp_path: Path) -> None:
    store.copy("c", tmp_path / "old")
    store.write("c", [Removal([f"d{i}" for i in range(50)]), content([("new", "new", {})])])
    store.copy("c", tmp_path / "new")
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not stop.is_set():
            try:
                found = set(ids(store, "c")) - {"written"}
                if found not in ({"new"}, {f"d{i}" for i in range(50)}):
                    wrong.append(found)
            except Exception as error:
                wrong.append(error)

    def write() -> None:
        while not stop.is_set():
            store.write("c", [content([("written", "w", {})])])

    threads = [threading.Thread(target=one) for one in (read, read, write)]
    for thread in threads:
        thread.start()
    for i in range(10):
        name = ("old", "new")[i % 2]
        file = tmp_path / f"{i}"
        file.write_bytes((tmp_path / name).read_bytes())
        store.adopt("c", file)
        assert not file.exists()
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.verify("c") == []


def test_what_was_adopted_is_there_after_a_restart(store: SqliteStore, tmp_path: Path) -> None:
    store.copy("c", tmp_path / "copy")
    store.write("c", [Removal(["d3"])])
    store.adopt("c", tmp_path / "copy")
    store.copy("c", tmp_path / "copy")
    store.adopt("e", tmp_path / "copy")
    for file in (tmp_path / "corpora").iterdir():  # as a kill leaves it
        (tmp_path / "again").mkdir(exist_ok=True)
        shutil.copy(file, tmp_path / "again")
    again = SqliteStore(tmp_path / "again")
    assert again.names() == ["c", "e"]
    assert ids(again, "c") == ids(again, "e") == [f"d{i}" for i in range(50)]
    assert again.corpus("c").generation != again.corpus("e").generation
    again.close()


def test_a_copy_keeps_giving_pages_back(store: SqliteStore, tmp_path: Path) -> None:
    store.copy("c", tmp_path / "copy")
    with closing(sqlite3.connect(tmp_path / "copy")) as copied:
        assert copied.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        assert copied.execute("PRAGMA page_size").fetchone() == (8192,)


def test_an_older_format_is_adopted(store: SqliteStore, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes((Path(__file__).parent / "formats" / "1.sqlite").read_bytes())
    store.adopt("c", old)
    assert store.size("c").documents == 20
    assert store.corpus("c").name == "c"


def broken_vector(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE vectors SET vector = zeroblob(16) WHERE key = 7")


def broken_page(file: Path) -> None:
    """Its second half is noise."""
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] + b"?" * (len(whole) - len(whole) // 2))


def no_corpus(file: Path) -> None:
    file.unlink()
    CorpusFile(file, new=True).close()


def another_database(file: Path) -> None:
    file.unlink()
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE corpora (name)")


REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (lambda file: file.unlink(), "no such file"),
    (lambda file: file.write_bytes(b""), "contains no corpus"),
    (lambda file: file.write_bytes(file.read_bytes()[:-13_000]), "malformed|database|damaged"),  # the last is empty
    (broken_vector, "vector of passage 7"),
    (broken_page, ""),
    (no_corpus, "contains no corpus"),
    (another_database, "not a corpus of this server"),
]


@pytest.mark.parametrize(("spoil", "says"), REFUSED)
def test_what_is_not_whole_is_refused_and_nothing_changes(
    store: SqliteStore, tmp_path: Path, spoil: Callable[[Path], object], says: str
) -> None:
    file = tmp_path / "copy"
    store.copy("c", file)
    spoil(file)
    generation = store.corpus("c").generation
    with pytest.raises(StoreError, match=f"{file}: .*({says})"):
        store.adopt("c", file)
    assert ids(store, "c") == [f"d{i}" for i in range(50)]
    assert store.corpus("c").generation == generation
    assert store.verify("c") == []


SPOILT = {
    "UPDATE vectors SET vector = zeroblob(16) WHERE key = 3": "vector of passage 3",
    "UPDATE vectors SET key = 1000 WHERE key = 3": "row 1000 belongs to",
    "UPDATE documents SET text = 'other' WHERE id = 'd7'": "'d7' is damaged",
    "UPDATE documents SET id = 'other' WHERE id = 'd7'": "'other' is damaged",
    "UPDATE documents SET metadata = '{}' WHERE id = 'd7'": "'d7' is damaged",
    "UPDATE documents SET text = CAST(x'ff' AS TEXT) WHERE id = 'd7'": "Could not decode to UTF-8 column 'text'",
    "UPDATE passages SET document = 1 WHERE key = 9": "passage 9 is damaged",
    "UPDATE passages SET start = 1 WHERE key = 9": "passage 9 is damaged",
    "DELETE FROM vectors WHERE key = 9": "counts 100 vectors, but the file has 99",
    "UPDATE corpora SET documents = 1": "counts 1 documents, but the file has 50",
    "UPDATE corpora SET spans = 0": "counts 0 spans, but the file has 100",
    "UPDATE corpora SET dim = 5": "does not have 5 dimensions",
    "INSERT INTO words (words, rowid, text) VALUES ('delete', 1, 'text')": "words",
    "DELETE FROM postings WHERE document = 5": "postings",
}


@pytest.mark.parametrize("statement", SPOILT)
def test_what_is_wrong_is_said(store: SqliteStore, tmp_path: Path, statement: str) -> None:
    assert store.verify("c") == []
    with closing(sqlite3.connect(tmp_path / "corpora" / "c.sqlite")) as database, database:
        database.execute(statement)
    assert SPOILT[statement] in "\n".join(store.verify("c"))
