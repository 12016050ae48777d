"""Corpora come and go, whole, whatever a kill cuts short."""

from __future__ import annotations

import os
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from serving.corpora.filter_language import compile_filter
from serving.corpora.ports import Store, StoreError
from serving.corpora.stores import STORES, records
from serving.corpora.stores.corpus_file import CorpusFile
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Change, Chunking, Corpus, Removal, Size
from serving.errors import Conflict, Invalid, NotFound
from tests.conftest import soon
from tests.serving.conftest import ROOT
from tests.serving.corpora.stores.contents import DIMS, Row, content, filled


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = STORES[request.param](tmp_path)
    yield opened
    opened.close()


def test_create_describe_drop(store: Store) -> None:
    assert store.create(Corpus("b", "first", 0.9, 1.0))
    assert not store.create(Corpus("b", None, 0.5, 2.0))
    assert store.corpus("b") == Corpus("b", "first", 0.5, 1.0)
    filled(store, "a", content([("x", "y", {})]))
    assert store.names() == ["a", "b"]
    assert (store.corpus("a").fingerprint, store.corpus("a").dim) == ("f", DIMS["f"])
    store.drop("a")
    assert store.names() == ["b"]
    assert store.create(Corpus("a"))
    assert store.size("a").documents == 0


@pytest.mark.parametrize("chunking", [None, Chunking(2, 0), Chunking(3, 0)])
def test_vectors_are_reused_only_if_the_text_is_chunked_in_the_same_way(
    store: Store, chunking: Chunking | None
) -> None:
    filled(store, "c", content([("a", "one two three", {})], chunking=Chunking(2, 0)))
    (known,) = store.embedded("c", ["one two three"], chunking, "f")
    assert (known is not None) == (chunking == Chunking(2, 0))


def test_what_a_corpus_is_and_what_it_holds_are_of_one_moment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it has documents, and no encoder that embedded them: the second of two first uploads would be refused."""

    def written_first(reader: sqlite3.Connection) -> Size:
        store.write("a", [content([("x", "y", {})])])
        return size(reader)

    store.create(Corpus("a"))
    size = records.size
    monkeypatch.setattr(records, "size", written_first)
    corpus, held = store.described("a")
    assert (corpus.fingerprint, held.documents) == (None, 0)
    monkeypatch.undo()
    corpus, held = store.described("a")
    assert (corpus.fingerprint, held.documents) == ("f", 1)


@pytest.mark.slow
def test_what_is_deleted_goes_back_to_the_disk(store: Store) -> None:
    """Words of their own for each text: FTS5 keeps those of what was removed, too, until it merges them."""
    store.create(Corpus("c"))
    store.create(Corpus("d"))
    draw = random.Random(0)
    rows: list[Row] = [(str(i), " ".join(f"{draw.getrandbits(40):x}" for _ in range(300)), {}) for i in range(300)]
    empty = store.size("c").bytes
    store.write("c", [content(rows)])
    full = store.size("c").bytes
    assert full > empty + 300 * 3000
    store.write("c", [Removal([row[0] for row in rows[1:20]])])
    store.give_back("c", least=full)
    assert store.size("c").bytes >= full, "not worth it"
    store.write("c", [Removal([row[0] for row in rows[20:]])])
    store.give_back("c", least=full)
    assert store.size("c").bytes < full, "a good part"
    assert store.words("c", rows[0][1].split()[7], 1).keys.tolist() == [1]
    store.write("c", [Removal([rows[0][0]])])
    store.give_back("c")
    assert store.size("c").bytes <= empty + 20_000
    assert store.verify("c") == []
    store.write("c", [content(rows[:2])])
    assert store.words("c", rows[1][1].split()[7], 1).keys.tolist() == [302]
    assert store.words("c", rows[2][1].split()[7], 1).keys.tolist() == []
    assert store.verify("c") == []


def test_files_are_as_long_as_what_is_in_them(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.create(Corpus("c"))
    rows: list[Row] = [(str(i), f"text {i} " * 1000, {}) for i in range(100)]
    for _ in range(3):
        store.write("c", [content(rows)])
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) > 700_000
        store.write("c", [Removal([row[0] for row in rows])])
        store.give_back("c")
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 300_000
    store.close()


def test_an_emptied_corpus_forgets_its_fields(store: Store) -> None:
    store.create(Corpus("c"))
    empty = store.size("c").bytes
    rows: list[Row] = [(str(i), "", {f"a field of document {i}: {n}": n for n in range(100)}) for i in range(10)]
    store.write("c", [content(rows), Removal([name for name, *_ in rows])])
    store.give_back("c")
    assert store.size("c").bytes <= empty + 20_000
    store.write("c", [content(rows)])
    assert store.ids_matching("c", compile_filter({"a field of document 7: 9": 9})) == ["7"]
    assert store.verify("c") == []


def test_a_store_that_is_closed_twice_closes_no_other(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.close()
    with (tmp_path / "other").open("wb") as other:  # has the number that the folder's descriptor had
        store.close()
        os.fstat(other.fileno())


@pytest.mark.slow
def test_a_reader_keeps_nobody_from_giving_back(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.create(Corpus("c"))
    store.write("c", [content([(str(i), f"text {i} " * 1000, {}) for i in range(100)])])
    full = store.size("c").bytes
    reader = sqlite3.connect(tmp_path / "c.sqlite", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM documents").fetchone()
    store.write("c", [Removal([str(i) for i in range(100)])])
    store.give_back("c")
    assert store.size("c").bytes < full / 2
    assert reader.execute("SELECT count(*) FROM documents").fetchone() == (100,), "of its moment"
    reader.close()
    store.write("c", [content([("a", "a text", {})])])
    assert store.verify("c") == []
    store.close()


def test_a_missing_corpus_or_document(store: Store) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.corpus("c"),
        lambda: store.drop("c"),
        lambda: store.write("c", [content([("a", "b", {})])]),
        lambda: list(store.vectors("c")),
        lambda: store.copy("c", Path("nowhere")),
        lambda: store.size("c"),
        lambda: store.page("c", 0, 1).rows,
        lambda: store.unmatched("c", compile_filter({"a": 1})),
    ]
    for call in calls:
        with pytest.raises(NotFound, match="no corpus 'c'"):
            call()
    store.create(Corpus("c"))
    with pytest.raises(NotFound, match="no document 'x'"):
        store.document("c", "x")


def test_an_emptied_corpus_takes_another_encoder(store: Store) -> None:
    filled(store, "c", content([("a", "b", {})]))
    assert isinstance(store.write("c", [content([("a", "b", {})], "g")])[0], Conflict), (
        "not even by replacing all of it"
    )
    removed, put = store.write("c", [Removal(["a"]), content([("a", "b", {})], "g")])
    assert isinstance(removed, Change)
    assert isinstance(put, Change)
    assert (store.corpus("c").fingerprint, store.corpus("c").dim) == ("g", DIMS["g"])


def test_an_encoder_of_the_same_name_and_another_width(store: Store) -> None:
    filled(store, "c", content([("a", "b", {})]))
    wider = replace(content([("a", "b", {})], "g"), fingerprint="f")
    assert isinstance(store.write("c", [wider])[0], Conflict)


def test_an_id_that_is_given_twice_is_named(store: Store) -> None:
    store.create(Corpus("c"))
    (refusal,) = store.write("c", [content([("same", "a", {}), ("same", "b", {})])])
    assert isinstance(refusal, Invalid) and "'same' is given twice" in refusal.message


KILLED = """
import sys
from pathlib import Path
from serving.operations import failpoints
from serving.corpora.values import Corpus
from serving.corpora.stores.sqlite import SqliteStore

store = SqliteStore(Path(sys.argv[1]))
failpoints.arm({failpoints.VARIABLE: f"{sys.argv[2]}=kill"})
store.create(Corpus("c"))
"""


@pytest.mark.parametrize(
    "place",
    soon(
        ["store.before-commit", "store.before-commit@2", "store.before-create", "store.after-create"],
        "store.before-commit",
    ),
)
def test_what_a_killed_creation_left_stands_in_nobodys_way(tmp_path: Path, place: str) -> None:
    name, _, turn = place.partition("@")
    script = KILLED.replace("=kill", f"=kill@{turn or 1}")
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path), name], cwd=ROOT, check=False)
    assert ended.returncode == -9
    assert {path.name for path in tmp_path.iterdir()} > {"lock"}
    store = SqliteStore(tmp_path)
    there = place == "store.after-create"
    assert store.names() == (["c"] if there else [])
    assert {path.name for path in tmp_path.iterdir() if path.suffix == ".part"} == set()
    assert store.create(Corpus("c", created=7.0)) != there
    assert store.verify("c") == []
    store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.sqlite", "lock"]


@pytest.mark.parametrize("obstacle", ["data", "data/lock"])
def test_a_folder_that_cannot_be_used(tmp_path: Path, obstacle: str) -> None:
    folder = tmp_path / "data"
    if obstacle == "data":
        folder.touch()
    else:
        (tmp_path / obstacle).mkdir(parents=True)
    with pytest.raises(StoreError, match=re.escape(str(folder))):
        SqliteStore(folder)


def test_a_corpus_dropped_under_its_readers(store: Store) -> None:
    filled(store, "c", content([("a", "b", {})]))
    vectors = store.vectors("c")
    store.drop("c")
    with pytest.raises(NotFound, match="no corpus 'c'"):
        next(vectors)


def test_a_log_left_by_a_removal_is_not_replayed_into_a_corpus_of_that_name(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.create(Corpus("c"))
    store.write("c", [content([("a", "b", {})])])
    log = (tmp_path / "c.sqlite-wal").read_bytes()
    store.drop("c")
    assert log
    (tmp_path / "c.sqlite-wal").write_bytes(log)
    store.create(Corpus("c", created=7.0))
    assert store.corpus("c") == Corpus("c", created=7.0)
    assert store.verify("c") == []
    store.close()


def test_two_servers_on_one_folder(tmp_path: Path) -> None:
    held = SqliteStore(tmp_path)
    with pytest.raises(StoreError, match="in use by another server"):
        SqliteStore(tmp_path)
    held.close()
    SqliteStore(tmp_path).close()


def test_durability_settings(tmp_path: Path) -> None:
    file = CorpusFile(tmp_path / "c.sqlite", new=True)
    with file.maintaining() as writer:
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert writer.execute("PRAGMA synchronous").fetchone() == (2,)
    file.close()
