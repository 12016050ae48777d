"""Tests of corpus threads: a busy corpus delays only itself, and a caller who left frees its thread when that ends."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from serving.errors import Conflict, Overloaded
from serving.operations import limits
from serving.operations import threads as threads_of_corpora
from serving.operations.context import holding
from serving.operations.keys import Key, digest
from serving.operations.limits import PATIENT, Caller, Limits, charged_to
from serving.operations.threads import CORPUS_THREADS, THREADS, CorpusThreads, check_cancelled, in_thread
from tests.conftest import PATIENCE


def with_pool(work: Callable[[CorpusThreads], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        pool = CorpusThreads()
        try:
            async with asyncio.timeout(PATIENCE):
                await work(pool)
        finally:
            pool.close()

    asyncio.run(main())


@pytest.mark.parametrize("leave", [False, True])
def test_one_name_never_takes_all_threads(leave: bool) -> None:
    finish, started = threading.Event(), list[int]()

    def busy(i: int) -> int:
        started.append(i)
        assert finish.wait(PATIENCE)
        return i

    async def work(pool: CorpusThreads) -> None:
        calls = [asyncio.create_task(pool.run("busy", partial(busy, i))) for i in range(2 * THREADS)]
        while len(started) < CORPUS_THREADS:
            await asyncio.sleep(0)
        if leave:
            for call in calls:
                call.cancel()
        assert await pool.run("other", lambda: "served") == "served"
        assert len(started) == CORPUS_THREADS
        finish.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        if leave:
            assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)
            assert len(started) == CORPUS_THREADS, "work that nobody waits for was begun"
        else:
            assert answers == list(range(2 * THREADS))
            assert not pool._corpora, "a lane outlived its work"

    with_pool(work)


@pytest.mark.slow
def test_whose_caller_has_gone_a_read_keeps_its_lane_and_not_the_caller() -> None:
    finish, started = threading.Event(), list[int]()

    def slow(i: int) -> None:
        started.append(i)
        assert finish.wait(PATIENCE)

    async def work(pool: CorpusThreads) -> None:
        readers = [asyncio.create_task(pool.read("busy", partial(slow, i))) for i in range(CORPUS_THREADS + 2)]
        while len(started) < CORPUS_THREADS:
            await asyncio.sleep(0)
        for reader in readers:
            reader.cancel()
        answers = await asyncio.gather(*readers, return_exceptions=True)
        assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)
        waiting = asyncio.create_task(pool.read("busy", lambda: "served"))
        assert await pool.run("other", lambda: "served") == "served"
        gc.collect()
        assert len(started) == CORPUS_THREADS and not waiting.done(), "threads are at work for the lane"
        finish.set()
        assert await waiting == "served"
        assert len(started) == CORPUS_THREADS, "work that nobody waits for was begun"
        while pool._left:
            await asyncio.sleep(0)

    with_pool(work)


@pytest.mark.parametrize(
    ("error", "says"), [(Conflict("it came meanwhile"), ""), (ZeroDivisionError("a bug"), "ZeroDivisionError: a bug")]
)
@pytest.mark.parametrize("way", ["lanes", "whole"])
def test_what_a_cancelled_caller_would_have_been_told_is_told_nobody_and_a_bug_the_log(
    caplog: pytest.LogCaptureFixture, way: str, error: Exception, says: str
) -> None:
    begun, finish = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        assert finish.wait(PATIENCE)
        raise type(error)(*error.args)

    async def work(pool: CorpusThreads) -> None:
        caller = asyncio.create_task(pool.run("a", fail) if way == "lanes" else in_thread(fail))
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        caller.cancel()
        await asyncio.sleep(0)
        finish.set()
        with pytest.raises(asyncio.CancelledError):
            await caller

    with_pool(work)
    gc.collect(1)
    assert says in caplog.text
    assert "never retrieved" not in caplog.text
    assert bool(says) == bool(caplog.text)


@pytest.mark.parametrize("way", ["run", "stoppable", "whole"])
def test_a_caller_who_is_cancelled_again_still_waits(way: str) -> None:
    """Cancel a caller twice, as a deadline and then a disconnect do. Its work must keep its place until it ends."""
    begun, finish = threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        assert finish.wait(PATIENCE)

    async def work(pool: CorpusThreads) -> None:
        caller = asyncio.create_task(in_thread(busy) if way == "whole" else getattr(pool, way)("a", busy))
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        for _ in range(3):
            caller.cancel()
            await asyncio.wait([caller], timeout=0.01)
        waits = not caller.done()
        finish.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert waits

    with_pool(work)


def test_an_error_reaches_its_caller() -> None:
    async def work(pool: CorpusThreads) -> None:
        with pytest.raises(ZeroDivisionError):
            await pool.run("a", lambda: 1 / 0)

    with_pool(work)


def key(name: str, threads: int | None = None) -> Caller:
    return Caller(Key(name=name, sha256=digest(name), scopes=("read",), threads=threads), Limits())


@pytest.mark.parametrize(("way", "beside"), [("read", "run"), ("run", "read"), ("stoppable", "run")])
@pytest.mark.parametrize(("threads", "most"), [(None, Limits().threads), (1, 1)])
def test_a_key_has_its_share_of_the_threads_and_leaves_the_others_theirs(
    threads: int | None, most: int, way: str, beside: str
) -> None:
    """Give each key one share of threads for reading and another for writing."""
    finish, started = threading.Event(), list[str]()

    def busy(name: str) -> None:
        started.append(name)
        assert finish.wait(PATIENCE)

    async def work(pool: CorpusThreads) -> None:
        with charged_to(key("greedy", threads)):
            names = ["a", "b", "c", "d", "e", "f"] * THREADS
            calls = [asyncio.create_task(getattr(pool, way)(name, partial(busy, name))) for name in names]
        while len(started) < most:
            await asyncio.sleep(0)
        with charged_to(key("greedy", threads)):
            assert await getattr(pool, beside)("a", lambda: "served") == "served"
        with charged_to(key("modest")):
            assert await getattr(pool, way)("a", lambda: "served") == "served"
        assert await pool.run("a", lambda: "served") == "served", "nobody's, as that of a job after a restart"
        assert len(started) == most
        finish.set()
        await asyncio.gather(*calls)
        assert len(started) == len(names) and not pool._shares, "a share outlived its work"

    with_pool(work)


@pytest.mark.parametrize("way", ["read", "run", "stoppable"])
def test_so_many_wait_for_the_threads_of_a_key_and_the_next_request_is_refused(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads_of_corpora, "WAITING", 3)
    finish = threading.Event()

    async def work(pool: CorpusThreads) -> None:
        with charged_to(key("greedy", 1)):
            calls = [asyncio.create_task(getattr(pool, way)("a", partial(finish.wait, PATIENCE))) for _ in range(4)]
            await asyncio.sleep(0.01)
            with pytest.raises(Overloaded, match="3 requests already wait for the threads of the key 'greedy'"):
                await getattr(pool, way)("b", lambda: "served")
            with holding(PATIENT, True):
                calls.append(asyncio.create_task(getattr(pool, way)("b", lambda: True)))
                await asyncio.sleep(0)
        with charged_to(key("modest")):
            assert await getattr(pool, way)("a", lambda: "served") == "served"
        finish.set()
        assert all(await asyncio.gather(*calls))
        assert not pool._held, "a key that has nothing to do is remembered"

    with_pool(work)


def test_a_read_whose_caller_left_is_told_to_end() -> None:
    begun = threading.Event()

    def endless() -> None:
        begun.set()
        while True:
            check_cancelled()

    async def work(pool: CorpusThreads) -> None:
        reading = asyncio.create_task(pool.read("a", endless))
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        while pool._left:
            await asyncio.sleep(0)

    with_pool(work)


@pytest.mark.parametrize(("used", "short", "gives_way"), [(100.0, 60.0, True), (0.0, 60.0, False), (100.0, 0.0, False)])
def test_long_work_gives_way_to_short_requests_of_other_keys(
    used: float, short: float, gives_way: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let short requests of other keys overtake long work, except within a key's CPU share and for long requests."""
    monkeypatch.setattr(limits, "SHORT_SECONDS", short)
    greedy, modest, steps = key("greedy"), key("modest"), list[int]()

    def long() -> None:
        for step in range(3):
            check_cancelled()
            steps.append(step)

    async def work(pool: CorpusThreads) -> None:
        greedy.cpu_share.take(used)
        with modest.admitted():
            with charged_to(greedy):
                working = asyncio.create_task(pool.read("a", long))
            await asyncio.sleep(0.05)
            assert bool(steps) != gives_way
        await working
        assert steps == [0, 1, 2]

    with_pool(work)


def test_work_that_gives_way_ends_with_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SHORT_SECONDS", 60.0)
    greedy, modest = key("greedy"), key("modest")

    async def work(pool: CorpusThreads) -> None:
        greedy.cpu_share.take(100.0)
        with modest.admitted():
            with charged_to(greedy):
                reading = asyncio.create_task(pool.read("a", check_cancelled))
            await asyncio.sleep(0.02)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            while pool._left:
                await asyncio.sleep(0)

    with_pool(work)


def test_bodies_with_many_lists_take_turns_within_a_key() -> None:
    order = list[str]()

    async def work(pool: CorpusThreads) -> None:
        async def hold(name: str, mark: str) -> None:
            with charged_to(key(name)):
                async with pool.containers():
                    order.append(mark)
                    await asyncio.sleep(0.01)
                    order.append(mark)

        await asyncio.gather(hold("greedy", "a"), hold("greedy", "b"), hold("modest", "c"))
        async with pool.containers(), pool.containers():
            pass  # Without keys, there is no limit.

    with_pool(work)
    assert order.index("b") > 2 and order.index("c") < 3, order
