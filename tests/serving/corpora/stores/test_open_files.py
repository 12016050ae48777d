"""Files of corpora: few are open, whoever uses one finds it so, and nobody sees the difference."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.stores.connections import OpenFiles
from serving.corpora.stores.corpus_file import Shared
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Corpus, Document
from serving.errors import NotFound
from tests.serving.corpora.stores.contents import content

NAMES = [f"c{i}" for i in range(12)]
MOST = 3


class File:
    """Open from its use until it rests."""

    def __init__(self) -> None:
        self.open = False

    def close_if_idle(self) -> None:
        self.open = False


@given(st.integers(0, 4), st.lists(st.integers(0, 5)))
def test_law_those_used_last_are_open(most: int, uses: list[int]) -> None:
    open_files, files = OpenFiles(most), [File() for _ in range(6)]
    for i in uses:
        files[i].open = True
        open_files.used(files[i])
    last = list(dict.fromkeys(reversed(uses)))[:most]
    assert [i for i, file in enumerate(files) if file.open] == sorted(last)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path, shared=Shared(OpenFiles(MOST)))
    for name in NAMES:
        opened.create(Corpus(name))
        opened.write(name, [content([("a", f"text of {name}", {})])])
    yield opened
    opened.close()


def open_in(folder: Path) -> set[str]:
    """Names of corpora that this process has open, by what the system says."""
    held = Path("/proc/self/fd")
    targets = [one.readlink() for one in held.iterdir() if one.is_symlink()]
    return {target.name.split(".")[0] for target in targets if target.parent == folder and target.name != "lock"}


def text(store: SqliteStore, name: str) -> str:
    return store.document(name, "a").text


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_few_are_open_and_all_are_read(store: SqliteStore, tmp_path: Path) -> None:
    assert open_in(tmp_path) == set(NAMES[-MOST:])
    assert [text(store, name) for name in NAMES] == [f"text of {name}" for name in NAMES]
    assert text(store, "c5") and open_in(tmp_path) == {"c5", *NAMES[1 - MOST :]}
    resting = [name for name in NAMES if name not in open_in(tmp_path)]
    assert not [beside for name in resting for beside in tmp_path.glob(f"{name}.sqlite-*")], "its log is folded"


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_what_all_of_them_are_is_told_without_opening_them(store: SqliteStore, tmp_path: Path) -> None:
    before = open_in(tmp_path)
    assert [store.described(name)[0].name for name in NAMES] == NAMES
    known = open_in(tmp_path)
    assert {store.described(name)[1].documents for name in NAMES} == {1} and open_in(tmp_path) == known
    store.write("c0", [content([("b", "one more", {})])])
    assert store.described("c0")[1].documents == store.size("c0").documents == 2
    store.describe(Corpus("c0", description="new"))
    assert store.corpus("c0").description == "new"
    assert len(before) == len(open_in(tmp_path)) == MOST


def test_who_uses_one_keeps_it(store: SqliteStore) -> None:
    """A transaction under way, and a reader in the middle of its vectors."""
    store.write("c0", [content([(f"d{i}", "x", {}) for i in range(2000)])])
    blocks = store.vectors("c0")
    first, _ = next(blocks)
    assert text(store, "c1")  # so that it is open before the transaction
    with store._file("c1").writing() as writer:
        writer.execute("UPDATE corpora SET description = 'kept'")
        for name in NAMES[2:]:
            assert text(store, name)
    assert store.corpus("c1").description == "kept"
    assert len(first) + sum(len(keys) for keys, _ in blocks) == 2001


def test_one_that_is_gone_stays_gone(store: SqliteStore, tmp_path: Path) -> None:
    file = store._file("c0")
    assert file.size().documents == 1
    store.drop("c0")
    with pytest.raises(NotFound):
        file.described()
    for name in NAMES[1:]:
        assert text(store, name)
    assert not list(tmp_path.glob("c0.*"))
    store.create(Corpus("c0"))
    assert store.size("c0").documents == 0


@pytest.mark.slow
def test_under_load_every_read_sees_what_was_written(store: SqliteStore) -> None:
    errors: list[BaseException] = []

    def go_on(name: str) -> None:
        try:
            for number in range(30):
                store.write(name, [content([("n", str(number), {})])])
                assert store.document(name, "n").text == str(number)
                assert store.size(name).documents == 2
                assert [document.text for document in documents(store, name)] == [f"text of {name}", str(number)]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go_on, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def documents(store: SqliteStore, name: str) -> list[Document]:
    return [document for _, document in store.page(name, 0, 10).rows]
