"""Corpora that come and go at the very moment another takes their name."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.corpora.corpora import Corpora
from serving.corpora.filter_language import compile_filter
from serving.corpora.indexes.live import LiveIndex
from serving.corpora.open_corpus import Indexes
from serving.corpora.search import Query, SearchOptions
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Content, Corpus, Document
from serving.errors import Conflict, InsufficientStorage
from serving.operations import threads
from serving.operations.keys import Key, digest
from serving.operations.limits import SECOND, Caller, Limits
from serving.operations.threads import CancelToken
from tests.serving.corpora.stores.contents import filled


def content(name: str) -> Content:
    return Content([Document(name, f"text {name}", {})], np.eye(1, 4, dtype=np.float32), "f")


@pytest.fixture
def corpora(tmp_path: Path) -> Iterator[Corpora]:
    """Yield one corpus, and a copy of it in the file `copy`."""
    opened = Corpora(
        filled(SqliteStore(tmp_path / "corpora"), "other", content("restored")), Indexes(tmp_path / "indexes")
    )
    opened.copy("other", tmp_path / "copy")
    yield opened
    opened.close()


def found(corpora: Corpora, name: str) -> list[str]:
    (hits,) = corpora.search(name, [Query(None, np.eye(1, 4, dtype=np.float32)[0])], SearchOptions(k=20)).hits
    return sorted(hit.passage.document.id for hit in hits)


def test_a_write_to_a_restored_corpus_waits_for_its_index(
    corpora: Corpora, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, writes = Indexes.open, list[Future[None]]()

    with ThreadPoolExecutor(1) as pool:

        def opened_slowly(*given: Any) -> LiveIndex:
            opened = opening(*given)
            if not writes:
                writes.append(pool.submit(corpora.put, "c", content("newer")))
                wait(writes, 0.2)
            return opened

        monkeypatch.setattr(Indexes, "open", opened_slowly)
        corpora.adopt("c", tmp_path / "copy")
        writes[0].result()
    assert found(corpora, "c") == ["newer", "restored"]


@pytest.mark.parametrize("name", ["c", "other"])
def test_a_corpus_is_restored_even_if_its_index_can_not_be_opened_yet(
    corpora: Corpora, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def full(*_: object) -> LiveIndex:
        raise InsufficientStorage("the disk is full")

    corpora.put("other", content("newer"))
    with monkeypatch.context() as patch:
        patch.setattr(Indexes, "open", full)
        corpora.adopt(name, tmp_path / "copy")
    assert found(corpora, name) == ["restored"]


def test_what_was_created_since_a_restore_looked_is_not_replaced(
    corpora: Corpora, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naming = corpora._naming

    @contextmanager
    def overtaken() -> Iterator[None]:
        """There was no corpus when it was looked for; when the lock is had, there is."""
        monkeypatch.undo()
        corpora.create(Corpus("c"))
        corpora.put("c", content("mine"))
        with naming:
            yield

    monkeypatch.setattr(corpora, "_naming", overtaken())
    with pytest.raises(Conflict, match="created while it was being restored"):
        corpora.adopt("c", tmp_path / "copy")
    assert [document.id for document in corpora.page("c", None, 10)[0]] == ["mine"]
    corpora.put("c", content("more"))
    assert corpora.verify("c") == []


@pytest.mark.parametrize("name", ["other", "c"])
def test_who_holds_a_lock_does_not_wait_for_the_requests_of_others(
    corpora: Corpora, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Delete and restore with a key that has a debt of CPU time. Other requests may need the locks that it holds."""
    caller = Caller(Key(name="k", sha256=digest("k"), scopes=("write",)), Limits())
    token, free = CancelToken(caller=caller), list[bool]()
    locks = [corpora._naming, corpora.named("other")._lock]

    def is_free(lock: Any) -> bool:
        held: bool = lock.acquire(blocking=False)
        if held:
            lock.release()
        return held

    def nap(_: float) -> None:
        with ThreadPoolExecutor(1) as others:
            free.extend(others.map(is_free, locks))
        caller.cpu_share.take(-SECOND)

    def into_debt() -> None:
        caller.cpu_share.take(SECOND)

    def stop() -> bool:
        into_debt()
        token.give_way()
        return False

    monkeypatch.setattr(threads, "others_wait", lambda _: True)
    monkeypatch.setattr(threads, "sleep", nap)
    monkeypatch.setattr(threads, "SLICE_SECONDS", 0)
    corpora.adopt(name, tmp_path / "copy", stop)
    token.run(lambda: corpora.delete_where(name, compile_filter({"$not": {"x": 1}}), into_debt))
    assert corpora.page(name, None, 0).total == 0
    assert free and all(free)
