"""Writes that come together share a commit, and each hears of its own outcome."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.corpora.corpora import Corpora
from serving.corpora.indexes.live import LiveIndex
from serving.corpora.open_corpus import Indexes
from serving.corpora.search import Query, SearchOptions
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Change, Content, Corpus, Document, Page, Removal, Write
from serving.errors import Conflict, InsufficientStorage, NotFound, ServiceError, Unhealthy
from serving.operations.threads import CancelToken
from tests.conftest import PATIENCE


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
        assert self.open.wait(PATIENCE)
        if self.full:
            raise InsufficientStorage("the disk is full")
        return super().write(name, writes)


@pytest.fixture
def store(tmp_path: Path) -> Slow:
    return Slow(tmp_path / "corpora")


@pytest.fixture
def corpora(store: Slow, tmp_path: Path) -> Iterator[Corpora]:
    opened = Corpora(store, Indexes(tmp_path / "indexes"))
    opened.create(Corpus("c"))
    opened.put("c", one("first"))
    opened.warm()
    store.groups.clear()
    yield opened
    opened.close()


def one(name: str, fingerprint: str = "f") -> Content:
    return Content([Document(name, name, {})], np.eye(1, 4, dtype=np.float32), fingerprint)


def together(store: Slow, corpora: Corpora, contents: Sequence[Content]) -> list[Exception | None]:
    """Write all while the first of them commits."""
    with ThreadPoolExecutor(len(contents)) as threads:
        store.open.clear()
        store.begun.clear()
        leading = threads.submit(corpora.put, "c", contents[0])
        assert store.begun.wait(PATIENCE)
        others = [threads.submit(corpora.put, "c", content) for content in contents[1:]]
        waiting = corpora.named("c")._pending
        while len(waiting) < len(others):
            pass
        store.open.set()
        return [written.exception() for written in (leading, *others)]  # type: ignore[misc]


def test_what_comes_during_a_commit_shares_the_next_one(store: Slow, corpora: Corpora) -> None:
    assert together(store, corpora, [one(f"d{i}") for i in range(8)]) == [None] * 8
    assert store.groups == [1, 7]
    found = corpora.search("c", [Query(None, np.eye(1, 4, dtype=np.float32)[0])], SearchOptions(k=20)).hits[0]
    assert len(found) == 9


def test_one_that_does_not_fit_harms_no_other(store: Slow, corpora: Corpora) -> None:
    outcomes = together(store, corpora, [one("a"), one("b"), one("c", "another encoder"), one("d")])
    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), Conflict, type(None)]
    assert {document.id for document in corpora.page("c", None, 10)[0]} == {"first", "a", "b", "d"}


def test_all_hear_of_a_commit_that_failed_and_nothing_is_kept(store: Slow, corpora: Corpora) -> None:
    store.full = True
    assert all(isinstance(said, InsufficientStorage) for said in together(store, corpora, [one("a"), one("b")]))
    store.full = False
    corpora.put("c", one("z"))
    assert {document.id for document in corpora.page("c", None, 10)[0]} == {"first", "z"}


def test_who_waits_while_the_corpus_goes_hears_so(store: Slow, corpora: Corpora) -> None:
    with ThreadPoolExecutor(2) as threads, corpora.named("c").locked():
        writing = threads.submit(corpora.put, "c", one("late"))
        while not corpora.named("c")._pending:
            pass
        corpora.drop("c")
    with pytest.raises(NotFound):
        writing.result()
    assert store.groups == []


def search(corpora: Corpora) -> list[str]:
    (hits,) = corpora.search("c", [Query(None, np.eye(1, 4, dtype=np.float32)[0])], SearchOptions(k=20)).hits
    return sorted(hit.passage.document.id for hit in hits)


def test_a_commit_needs_no_read_that_may_fail(store: Slow, corpora: Corpora, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed is acknowledged and found, also where no file can be opened to read with."""

    def no_more_files(name: str) -> Corpus:
        raise Unhealthy(f"{name}: too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(corpora.named("c").live, "_target", lambda: 0.95)
        patch.setattr(store, "corpus", no_more_files)
        assert together(store, corpora, [one("a"), one("b"), one("d")]) == [None] * 3
    assert search(corpora) == ["a", "b", "d", "first"]


def test_an_index_follows_a_commit_whose_caller_left_meanwhile(
    store: Slow, corpora: Corpora, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, token = corpora.named("c"), CancelToken()
    before = corpus.live

    def write_and_leave(name: str, writes: Sequence[Write]) -> list[Change | ServiceError]:
        outcomes = SqliteStore.write(store, name, writes)
        token.cancel()
        return outcomes

    monkeypatch.setattr(store, "write", write_and_leave)
    monkeypatch.setattr(before, "reconsider", lambda: store.corpus("c"))  # as one that asks for the recall target
    token.run(lambda: corpus.write(Removal(["first"])))
    assert corpus.live is before is not None, "it was let go, to be opened anew"
    assert search(corpora) == []


def test_an_index_that_does_not_follow_is_opened_anew(corpora: Corpora, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    assert search(corpora) == ["first"]
    with monkeypatch.context() as patch:
        patch.setattr(LiveIndex, "change", no_memory)
        corpora.put("c", one("a"))
        corpora.delete("c", "first")
    assert search(corpora) == ["a"]


def test_an_emptied_corpus_takes_another_encoder(corpora: Corpora) -> None:
    assert search(corpora) == ["first"]
    corpora.delete("c", "first")
    assert corpora.search("c", [Query("x", np.ones(7, np.float32))], SearchOptions(), "wider").hits == [[]]
    corpora.put("c", Content([Document("a", "a", {})], np.eye(1, 7, dtype=np.float32), "wider"))
    (found,) = corpora.search("c", [Query("x", np.ones(7, np.float32))], SearchOptions(), "wider").hits
    assert [hit.passage.document.id for hit in found] == ["a"]


def test_a_page_is_of_one_moment(corpora: Corpora, store: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that is replaced behind it counts as new, and would be listed twice."""

    def then_replaced(*asked: Any) -> Page:
        page = SqliteStore.page(store, *asked)
        corpora.put("c", one("first"))
        return page

    monkeypatch.setattr(store, "page", then_replaced)
    page = corpora.page("c", None, 10)
    assert ([document.id for document in page.documents], page.following) == (["first"], None)
