"""Writes that come together share a commit, and each hears of its own outcome."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from serving.corpora import Corpora
from serving.errors import Conflict, InsufficientStorage, NotFound, ServiceError
from serving.finding import Query, Wanted
from serving.opening import Indexes
from serving.ports import Change, Content, Document, Write
from serving.stores.sqlite import SqliteStore


class Slow(SqliteStore):
    """Its commits wait for `open`; it counts them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Event()
        self.groups: list[int] = []
        self.full = False

    def write(self, name: str, writes: Sequence[Write]) -> list[Change | ServiceError]:
        """See `Store`."""
        self.groups.append(len(writes))
        self.begun.set()
        assert self.open.wait(20)
        if self.full:
            raise InsufficientStorage("the disk is full")
        return super().write(name, writes)


@pytest.fixture
def store(tmp_path: Path) -> Slow:
    return Slow(tmp_path / "corpora")


@pytest.fixture
def corpora(store: Slow, tmp_path: Path) -> Corpora:
    opened = Corpora(store, Indexes(tmp_path / "indexes"))
    opened.create("c")
    opened.put("c", one("first"))
    store.groups.clear()
    return opened


def one(name: str, fingerprint: str = "f") -> Content:
    return Content([Document(name, name, {})], np.eye(1, 4, dtype=np.float32), fingerprint)


def together(store: Slow, corpora: Corpora, contents: Sequence[Content]) -> list[Exception | None]:
    """Write all while the first of them commits."""
    with ThreadPoolExecutor(len(contents)) as threads:
        store.open.clear()
        store.begun.clear()
        leading = threads.submit(corpora.put, "c", contents[0])
        assert store.begun.wait(20)
        others = [threads.submit(corpora.put, "c", content) for content in contents[1:]]
        waiting = corpora._open["c"]._pending
        while len(waiting) < len(others):
            pass
        store.open.set()
        return [written.exception() for written in (leading, *others)]  # type: ignore[misc]


def test_what_comes_during_a_commit_shares_the_next_one(store: Slow, corpora: Corpora) -> None:
    assert together(store, corpora, [one(f"d{i}") for i in range(8)]) == [None] * 8
    assert store.groups == [1, 7]
    found = corpora.search("c", [Query(None, np.eye(1, 4, dtype=np.float32)[0])], Wanted(k=20)).hits[0]
    assert len(found) == 9


def test_one_that_does_not_fit_harms_no_other(store: Slow, corpora: Corpora) -> None:
    outcomes = together(store, corpora, [one("a"), one("b"), one("c", "another encoder"), one("d")])
    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), Conflict, type(None)]
    assert {document.id for document in corpora.page("c", 0, 10)[0]} == {"first", "a", "b", "d"}


def test_all_hear_of_a_commit_that_failed_and_nothing_is_kept(store: Slow, corpora: Corpora) -> None:
    store.full = True
    assert all(isinstance(said, InsufficientStorage) for said in together(store, corpora, [one("a"), one("b")]))
    store.full = False
    corpora.put("c", one("z"))
    assert {document.id for document in corpora.page("c", 0, 10)[0]} == {"first", "z"}


def test_who_waits_while_the_corpus_goes_hears_so(store: Slow, corpora: Corpora) -> None:
    with ThreadPoolExecutor(2) as threads, corpora._open["c"].locked():
        writing = threads.submit(corpora.put, "c", one("late"))
        while not corpora._open["c"]._pending:
            pass
        corpora.drop("c")
    with pytest.raises(NotFound):
        writing.result()
    assert store.groups == []
