"""Tests of the cache of vectors: repeated texts are embedded once, and no answer changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.tokenizer import Tokens
from serving.errors import Backend
from serving.inference.fair_queue import Answer
from serving.inference.vector_cache import VectorCache
from serving.operations.keys import Key
from serving.operations.limits import Caller, Limits, charged_to
from serving.operations.lru import OVERHEAD, Lru


def text(*ids: int) -> Tokens:
    return Tokens(np.array(ids, dtype=np.int64), len(ids))


@dataclass
class Queue:
    """Queue that returns the vector (sum, length) of each text when opened, and records the texts."""

    sent: list[list[int]] = field(default_factory=list)
    bulk: list[bool] = field(default_factory=list)
    cancelled: int = 0
    fails: Exception | None = None
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def submit(self, texts: Sequence[Tokens], *, bulk: bool = False) -> Answer:
        self.bulk.append(bulk)
        self.sent += [one.ids.tolist() for one in texts]
        failure = self.fails
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if failure:
            raise failure
        rows = np.array([[one.ids.sum(), len(one)] for one in texts], dtype=np.float32)
        return Answer(rows, rows[:, 0], 0.0)


def expected(texts: Sequence[Tokens]) -> list[list[float]]:
    return [[float(one.ids.sum()), float(len(one))] for one in texts]


some_texts = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=2), min_size=1, max_size=6)


@given(st.lists(some_texts, min_size=1, max_size=8), st.integers(0, 2000))
def test_vectors_are_those_of_the_queue_whatever_is_kept(requests: list[list[list[int]]], max_bytes: int) -> None:
    async def main() -> None:
        queue = Queue()
        queue.open.set()
        cache = VectorCache(queue.submit, max_bytes)
        for request in requests:
            texts = [text(*ids) for ids in request]
            twice = await asyncio.gather(cache.embed(texts), cache.embed(texts[::-1]))
            assert twice[0].vectors.tolist() == expected(texts)
            assert twice[1].vectors.tolist() == expected(texts[::-1])
            assert twice[0].norms.tolist() == [row[0] for row in expected(texts)]
            assert cache.kept.bytes <= max_bytes
        if max_bytes == 2000:  # Five entries fit into the cache.
            assert len(queue.sent) >= len({tuple(ids) for request in requests for ids in request})

    asyncio.run(main())


def test_a_text_that_comes_again_is_not_sent_again() -> None:
    seen: list[tuple[int, int]] = []

    async def main() -> None:
        queue = Queue()
        queue.open.set()
        cache = VectorCache(queue.submit, 10_000, observe=lambda hits, misses: seen.append((hits, misses)))
        await cache.embed([text(1), text(2), text(1)])
        await cache.embed([text(2), text(3)])
        assert queue.sent == [[1], [2], [3]]

    asyncio.run(main())
    assert seen == [(0, 3), (1, 1)]


def test_a_text_that_is_on_its_way_is_waited_for() -> None:
    async def main() -> None:
        queue = Queue()
        cache = VectorCache(queue.submit, 10_000)
        waiting = [asyncio.create_task(cache.embed([text(1)])) for _ in range(3)]
        await asyncio.sleep(0.001)
        queue.open.set()
        assert [(await one).vectors.tolist() for one in waiting] == [[[1, 1]]] * 3
        assert queue.sent == [[1]]

    asyncio.run(main())


@pytest.mark.parametrize("others", [[text(1), text(2)], [text(1)]])
def test_nobody_waits_for_the_end_of_another_s_work(others: list[Tokens]) -> None:
    """Check that a text does not wait for another request of several texts, or for bulk work."""

    async def main() -> None:
        queue = Queue()
        cache = VectorCache(queue.submit, 10_000)
        large = asyncio.create_task(cache.embed(others, bulk=len(others) == 1))
        await asyncio.sleep(0.001)
        single = asyncio.create_task(cache.embed([text(1)]))
        await asyncio.sleep(0.001)
        assert queue.sent == [*(one.ids.tolist() for one in others), [1]]
        queue.open.set()
        await asyncio.gather(large, single)

    asyncio.run(main())


def test_a_key_does_not_wait_in_the_queue_of_another_key() -> None:
    async def main() -> None:
        queue = Queue()
        cache = VectorCache(queue.submit, 10_000)
        waiting = []
        for name in "ab":
            with charged_to(Caller(Key(name=name, sha256="0" * 64, scopes=("read",)), Limits())):
                waiting += [asyncio.create_task(cache.embed([text(1)])) for _ in range(2)]
        await asyncio.sleep(0.001)
        assert queue.sent == [[1], [1]]
        queue.open.set()
        await asyncio.gather(*waiting)

    asyncio.run(main())


def test_who_leaves_last_takes_the_text_along() -> None:
    async def main() -> None:
        queue = Queue()
        cache = VectorCache(queue.submit, 10_000)
        alone = asyncio.create_task(cache.embed([text(1)]))
        leader = asyncio.create_task(cache.embed([text(2)]))
        await asyncio.sleep(0.001)
        follower = asyncio.create_task(cache.embed([text(2)]))
        await asyncio.sleep(0.001)
        alone.cancel()
        leader.cancel()
        await asyncio.wait([alone, leader])
        newcomer = asyncio.create_task(cache.embed([text(1)]))
        await asyncio.sleep(0.001)
        assert queue.cancelled == 1
        queue.open.set()
        assert (await follower).vectors.tolist() == [[2, 1]]
        assert (await newcomer).vectors.tolist() == [[1, 1]]
        assert queue.sent == [[1], [2], [1]]

    asyncio.run(main())


def test_those_who_share_a_text_share_its_failure_and_the_next_one_tries_anew() -> None:
    async def main() -> None:
        queue = Queue(fails=Backend("broken"))
        cache = VectorCache(queue.submit, 10_000)
        waiting = [asyncio.create_task(cache.embed([text(1)])) for _ in range(3)]
        await asyncio.sleep(0.001)
        queue.fails = None
        queue.open.set()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in answers] == [Backend] * 3
        assert queue.sent == [[1]]
        assert (await cache.embed([text(1)])).vectors.tolist() == [[1, 1]]

    asyncio.run(main())


def test_a_failure_is_not_kept() -> None:
    async def main() -> None:
        queue = Queue(fails=Backend("broken"))
        queue.open.set()
        cache = VectorCache(queue.submit, 10_000)
        with pytest.raises(Backend):
            await cache.embed([text(1)])
        queue.fails = None
        assert (await cache.embed([text(1)])).vectors.tolist() == [[1, 1]]
        assert cache.kept.bytes > 0

    asyncio.run(main())


def test_bulk_work_stays_bulk() -> None:
    async def main() -> None:
        queue = Queue()
        queue.open.set()
        cache = VectorCache(queue.submit, 10_000)
        await cache.embed([text(1)], bulk=True)
        await cache.embed([text(2)])
        assert queue.bulk == [True, False]

    asyncio.run(main())


def test_a_caller_may_write_over_what_it_got() -> None:
    async def main() -> None:
        queue = Queue()
        queue.open.set()
        cache = VectorCache(queue.submit, 10_000)
        (await cache.embed([text(1)])).vectors[:] = 9
        assert (await cache.embed([text(1)])).vectors.tolist() == [[1, 1]]

    asyncio.run(main())


def test_what_is_kept_keeps_nothing_else_of_its_batch() -> None:
    """Check that entries do not keep their batch's memory, which the cache does not count."""

    async def main() -> None:
        queue = Queue()
        queue.open.set()
        cache = VectorCache(queue.submit, 10_000)
        await cache.embed([text(1), text(2)])
        rows = [cache.kept.get(one.ids.tobytes()) for one in (text(1), text(2))]
        assert [row and row.vector.base is None for row in rows] == [True, True]

    asyncio.run(main())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 200)), max_size=40), st.integers(0, 1500))
def test_the_least_recently_used_go_first_and_bytes_stay_bounded(puts: list[tuple[int, int]], limit: int) -> None:
    kept: Lru[int, int] = Lru(limit)
    model: dict[int, int] = {}
    for key, size in puts:
        kept.put(key, size, size)
        model.pop(key, None)
        if size + OVERHEAD <= limit:
            model[key] = size
            while sum(model.values()) + OVERHEAD * len(model) > limit:
                del model[next(iter(model))]
        assert kept.bytes == sum(model.values()) + OVERHEAD * len(model) <= limit
        probe = key % 3
        assert kept.get(probe) == model.get(probe)
        if probe in model:
            model[probe] = model.pop(probe)
    assert len(kept) == len(model)
