"""Tests of the cancellation of unneeded work: after a caller left, at a deadline, or at the end of a drain."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from fastapi.testclient import TestClient

from models.runtimes.base import Floats
from serving.api import search as search_api
from serving.api.schemas.search import SearchRequest
from serving.corpora.corpora import Corpora
from serving.corpora.filter_language import compile_filter
from serving.corpora.indexes.exact import VECTORS, nearest
from serving.corpora.indexes.state import TOGETHER, Main, Marks, Tuning
from serving.corpora.open_corpus import Indexes, OpenCorpus
from serving.corpora.ports import Ranking
from serving.corpora.search import Hit, Query, SearchOptions
from serving.corpora.stores import STORES
from serving.corpora.stores.connections import READ_STEPS, Connections
from serving.corpora.values import Content, Corpus, Document, Passage
from serving.errors import Stopped, Unhealthy
from serving.operations.threads import CancelToken, check_cancelled, for_others, is_cancelled
from serving.service import Service
from tests.conftest import PATIENCE

DIM = 4
DOCUMENTS = 50
UNIT = np.eye(1, DIM, dtype=np.float32)[0]
METADATA = {"tags": [f"tag{i}" for i in range(300)], **{f"n{i}": i for i in range(10)}}
"""Metadata with more tags than have postings, so that a filter must read the document."""
POSTED = compile_filter({"$or": [{f"n{i}": {"$gte": 0}} for i in range(10)]})
NESTED = compile_filter({"tags": {"$elemMatch": {"$not": {"$gt": ""}}}})
MANY = compile_filter({"$or": [{"tags": {"$in": [f"x{i}"]}} for i in range(20)]})


class Countdown(CancelToken):
    """Cancellation that takes effect after a number of checks."""

    def __init__(self, asks: int) -> None:
        super().__init__()
        self.asks = asks

    @property
    def cancelled(self) -> bool:
        self.asks -= 1
        return self.asks < 0


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpora]:
    folder = tmp_path_factory.mktemp("cancelling")
    opened = Corpora(STORES["sqlite"](folder / "corpora"), Indexes(folder / "indexes"))
    opened.create(Corpus("c"))
    documents = [Document(str(i), f"a red word{i}", METADATA) for i in range(DOCUMENTS)]
    opened.put("c", Content(documents, np.tile(UNIT, (DOCUMENTS, 1)), "f"))
    yield opened
    opened.close()


def search(count: int = 1, **wanted: Any) -> Callable[[Corpora], object]:
    return lambda corpora: corpora.search(
        "c", [Query(f"red word{i}", UNIT) for i in range(count)], SearchOptions(**wanted)
    )


@pytest.mark.parametrize(
    ("work", "least"),
    [
        (search(where=MANY), DOCUMENTS * 20),
        (search(mode="lexical", where=MANY), DOCUMENTS * 20),
        (search(where=NESTED), DOCUMENTS * 300),
        (search(where=POSTED), 20),
        (search(20, mode="lexical"), 20),
        (search(20, mode="hybrid"), 20),
        (search(highlight=True, k=DOCUMENTS), DOCUMENTS),
        (search(with_vector=True), 3),
        (lambda corpora: corpora.page("c", None, 0, MANY), DOCUMENTS * 20),
        (lambda corpora: corpora.unmatched("c", compile_filter({f"f{i}": 1 for i in range(20)})), 10),
        (lambda corpora: corpora.facets("c", 10), 20),
        (lambda corpora: corpora.sample("c", DOCUMENTS, "tags"), 3),
        (lambda corpora: corpora.delete_where("c", MANY), DOCUMENTS * 20),
    ],
)
def test_long_work_asks_all_the_time_and_ends_whenever_it_is_told_to(
    corpora: Corpora, work: Callable[[Corpora], object], least: int
) -> None:
    forget_what_matched(corpora)
    free = Countdown(10**9)
    free.run(lambda: work(corpora))
    asked = 10**9 - free.asks
    assert asked >= least
    for asks in {0, asked // 2, asked * 9 // 10}:
        forget_what_matched(corpora)
        with pytest.raises(Stopped):
            Countdown(asks).run(lambda: work(corpora))
    assert corpora.page("c", None, 0).total == DOCUMENTS


def forget_what_matched(corpora: Corpora) -> None:
    """Write without changing a document, so that cached filter results become outdated."""
    corpora.put("c", Content([Document("more", "more", METADATA)], UNIT[None], "f"))
    corpora.delete("c", "more")


def test_a_statement_of_sqlite_ends_and_its_connection_serves_on(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.touch()
    connections = Connections(path)
    endless = (
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n WHERE i < {10**12}"
    )

    def read(select: str) -> Any:
        with connections.reading() as reader:
            return reader.execute(select).fetchone()

    with pytest.raises(Stopped):
        Countdown(5).run(lambda: read(endless))
    steps = f"{endless} AND i > 0".replace(f"i < {10**12}", "true").replace(
        "FROM n)", f"FROM n WHERE i < {READ_STEPS})"
    )
    assert read(steps) == (READ_STEPS,), "without a token nothing ends it"
    connections.close()


def test_rows_that_somebody_still_holds_keep_no_later_read_in_their_moment(tmp_path: Path) -> None:
    """Keep rows of a stopped read, as its exception may do. Later reads must not see the old state."""
    path = tmp_path / "a.sqlite"
    path.touch()
    connections = Connections(path)
    with connections.writing() as writer:
        writer.execute("CREATE TABLE t AS SELECT 1 AS i UNION ALL SELECT 2")
    with connections.reading() as reader:
        held = reader.execute("SELECT i FROM t")
        assert held.fetchone()
    with connections.writing() as writer:
        writer.execute("INSERT INTO t VALUES (3)")
    with connections.reading() as reader:
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (3,)
    connections.close()


def test_a_write_is_never_ended_by_its_caller_s_leaving(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.touch()
    connections, token = Connections(path), CancelToken()

    def write() -> None:
        token.cancel()
        with connections.writing() as writer:
            writer.execute(
                "CREATE TABLE t AS WITH RECURSIVE n(i) AS "
                "(SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT i FROM n"
            )

    token.run(write)
    with connections.reading() as reader:
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (300_000,)
    connections.close()


def test_ranking_ends_between_two_blocks() -> None:
    keys, vectors = np.arange(3 * VECTORS), np.zeros((3 * VECTORS, 2), np.float32)
    with pytest.raises(Stopped):
        Countdown(3).run(lambda: nearest(keys, vectors, vectors[:1], 1))
    assert len(Countdown(4).run(lambda: nearest(keys, vectors, vectors[:1], 1))) == 1


def test_the_writing_of_an_answer_ends_between_two_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    hit = Hit(Passage(Document("a", "a", {}), None), key=1, seen=1, score=0.5)
    found, body = Mock(hits=[[hit] * 5]), SearchRequest(query="a")
    write = Mock(side_effect=search_api._hit)
    monkeypatch.setattr(search_api, "_hit", write)
    with pytest.raises(Stopped):
        Countdown(3).run(lambda: search_api._results(found, ["order"], body, 1_000_000))
    assert write.call_count == 2, "one check is that of the beginning"


def test_what_others_need_goes_on_without_its_caller_and_ends_with_the_server() -> None:
    going = CancelToken()
    token = CancelToken(going)

    def work() -> list[bool]:
        token.cancel()
        with for_others():
            check_cancelled()
            going.cancel()
            asked = [is_cancelled()]
        return [*asked, is_cancelled()]

    assert token.run(work) == [True, True]
    assert not is_cancelled()
    with pytest.raises(Stopped):
        CancelToken(going).run(lambda: pytest.fail("it began"))


def test_an_index_is_opened_for_all_though_the_caller_who_began_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, token = STORES["sqlite"](tmp_path / "corpora"), CancelToken()
    first = Corpora(store, Indexes(tmp_path / "indexes"))
    first.create(Corpus("c"))
    first.put("c", Content([Document("a", "a", {})], UNIT[None], "f"))
    again = Corpora(store, Indexes(tmp_path / "again"))
    opened = Indexes.open

    def leave(self: Indexes, *arguments: Any) -> Any:
        token.cancel()
        return opened(self, *arguments)

    monkeypatch.setattr(Indexes, "open", leave)
    with pytest.raises(Stopped):
        token.run(lambda: search()(again))
    assert again.index_sizes()["c"].vectors == 1
    again.close()


def test_the_opening_of_all_indexes_ends_within_any(corpora: Corpora, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Mock(side_effect=Stopped("nobody waits"))
    monkeypatch.setattr(OpenCorpus, "index", index)
    corpora.create(Corpus("another"))
    with pytest.raises(Stopped):
        corpora.warm()
    assert index.call_count == 1


class Endless:
    """Work that ends only at one of its checks."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.begun.set()
        try:
            while True:
                check_cancelled()
                threading.Event().wait(0.001)
        finally:
            self.ended.set()


FILTER = {"a": 1}


@pytest.mark.parametrize(
    ("asked", "sent", "does"),
    [
        ("POST search", {"json": {"query": "whale"}}, "search"),
        ("POST search", {"json": {"query": "whale", "mode": "lexical"}}, "search"),
        ("GET documents", {"params": {"filter": '{"a": 1}'}}, "page"),
        ("GET fields", {}, "facets"),
        ("GET map", {}, "sample"),
        ("DELETE documents", {"json": {"filter": FILTER}}, "unmatched"),
    ],
)
def test_a_deadline_ends_the_work_itself(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, asked: str, sent: dict[str, Any], does: str
) -> None:
    endless = Endless()
    client.put("/corpora/books")
    client.post("/corpora/books/documents", json={"documents": [{"text": "a white whale"}]})
    monkeypatch.setattr(Corpora, does, endless)
    method, what = asked.split()
    late = client.request(method, f"/corpora/books/{what}", headers={"x-timeout-ms": "200"}, **sent)
    assert late.status_code == 504, late.text
    assert endless.ended.wait(PATIENCE) or not endless.begun.is_set()


def test_at_the_end_of_a_drain_reads_end_with_a_503(
    make_service: Callable[..., Service], run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = Endless()
    monkeypatch.setattr(Corpora, "facets", endless)
    service = make_service(drain_seconds=0.05)

    async def work() -> None:
        await service.loaded.wait()
        asked = [
            asyncio.create_task(service.library.read(lambda corpora: corpora.facets("c", 1), "c", charged=True))
        ] * 2
        assert await asyncio.to_thread(endless.begun.wait, PATIENCE)
        assert not await service.drain()
        for one in asked:
            with pytest.raises(Unhealthy, match="shutting down") as told:
                await one
            assert told.value.retry_after
        assert endless.ended.is_set()

    run(service, work)


def test_loading_ends_with_the_server(
    make_service: Callable[..., Service], run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = Endless()
    monkeypatch.setattr(Corpora, "warm", endless)
    service = make_service()

    async def work() -> None:
        assert await asyncio.to_thread(endless.begun.wait, PATIENCE)

    run(service, work)
    assert endless.ended.is_set()


def test_many_queries_of_an_approximate_index_end_between_two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    main = Main(np.arange(10), np.zeros((10, DIM), np.float32), None, Tuning(0.9))
    asked = list[int]()

    def candidates(_: Main, queries: Floats, *__: object) -> list[Ranking]:
        asked.append(len(queries))
        return [Ranking(np.zeros(1, np.int64), np.zeros(1, np.float32))] * len(queries)

    monkeypatch.setattr(Main, "_effort", lambda *_: 1)
    monkeypatch.setattr(Main, "candidates", candidates)
    queries = np.zeros((2 * TOGETHER + 1, DIM), np.float32)
    assert len(Countdown(4).run(lambda: main.search(queries, 1, Marks(10)))) == len(queries)
    assert asked == [TOGETHER, TOGETHER, 1]
    with pytest.raises(Stopped):
        Countdown(2).run(lambda: main.search(queries, 1, Marks(10)))
    assert asked[3:] == [TOGETHER]
