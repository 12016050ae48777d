"""The laws of the batcher, for any arrivals, lengths, cancellations and failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.tokenizer import Tokens
from serving.batcher import PADDING, Batcher
from serving.errors import Backend, Overloaded, Unhealthy
from serving.ports import Embedded

BUDGET = 64
POISON = 13


def tokens(mark: int, length: int) -> Tokens:
    return Tokens(np.full(length, mark, dtype=np.int64), length)


@dataclass
class Engine:
    """Gives each text the vector (its mark, its length) and remembers its batches; batches wait for `open`."""

    batches: list[list[Tokens]] = field(default_factory=list)
    open: threading.Event = field(default_factory=threading.Event)

    def embed(self, batch: Sequence[Tokens]) -> Embedded:
        assert self.open.wait(5)
        self.batches.append(list(batch))
        if any(one.ids[0] == POISON for one in batch):
            raise ValueError("poisoned")
        rows = np.array([[one.ids[0], len(one)] for one in batch], dtype=np.float32)
        return Embedded(rows, rows[:, 0])

    @property
    def marks(self) -> list[int]:
        return [int(one.ids[0]) for batch in self.batches for one in batch]


def batcher(engine: Engine, queued: int = 10**9) -> Batcher:
    return Batcher(engine.embed, max_batch_tokens=BUDGET, max_queued_tokens=queued)


lengths = st.integers(1, 100)
requests = st.lists(st.lists(lengths, min_size=1, max_size=8), min_size=1, max_size=12)


@given(requests)
def test_everyone_gets_their_own_vectors_in_order_and_no_batch_is_over_budget(shape: list[list[int]]) -> None:
    engine = Engine()

    async def main() -> None:
        queue = batcher(engine)
        marked = [[tokens(100 * r + i, n) for i, n in enumerate(texts)] for r, texts in enumerate(shape, 1)]
        waiting = [asyncio.create_task(queue.submit(texts)) for texts in marked]
        await asyncio.sleep(0)
        engine.open.set()
        for texts, answer in zip(marked, await asyncio.gather(*waiting), strict=True):
            expected = [[one.ids[0], len(one)] for one in texts]
            assert answer.vectors.tolist() == expected
            assert answer.norms.tolist() == [one.ids[0] for one in texts]
        assert (queue.queued_tokens, queue.queued_texts) == (0, 0)
        await queue.close()

    asyncio.run(main())
    for batch in engine.batches:
        padded = len(batch) * max(map(len, batch))
        assert len(batch) == 1 or (padded <= BUDGET and padded <= PADDING * sum(map(len, batch)))


@given(requests)
def test_the_oldest_waiting_request_is_in_every_batch(shape: list[list[int]]) -> None:
    engine = Engine()

    async def main() -> None:
        queue = batcher(engine)
        first = asyncio.create_task(queue.submit([tokens(999, 1)]))
        await asyncio.sleep(0)
        marked = [[tokens(r, n) for n in texts] for r, texts in enumerate(shape, 1000)]
        waiting = [asyncio.create_task(queue.submit(texts)) for texts in marked]
        await asyncio.sleep(0)
        engine.open.set()
        await asyncio.gather(first, *waiting)
        await queue.close()

    asyncio.run(main())
    left = [mark for mark, texts in zip(range(1000, 1100), shape, strict=False) for _ in texts]
    for batch in engine.batches[1:]:
        marks = [int(one.ids[0]) for one in batch]
        assert min(left) in marks
        for mark in marks:
            left.remove(mark)


@given(requests, st.data())
def test_cancelled_work_is_never_embedded_and_frees_the_queue(shape: list[list[int]], data: st.DataObject) -> None:
    engine = Engine()

    async def main() -> None:
        queue = batcher(engine)
        first = asyncio.create_task(queue.submit([tokens(1, 1)]))
        await asyncio.sleep(0.001)  # it is in the engine now
        waiting = {
            r: asyncio.create_task(queue.submit([tokens(r, n) for n in texts])) for r, texts in enumerate(shape, 100)
        }
        await asyncio.sleep(0)
        leaving = data.draw(st.sets(st.sampled_from(sorted(waiting))))
        for r in leaving:
            waiting[r].cancel()
        await asyncio.sleep(0)
        staying = sum(sum(texts) for r, texts in enumerate(shape, 100) if r not in leaving)
        assert queue.queued_tokens == 1 + staying
        engine.open.set()
        await asyncio.gather(first, *(task for r, task in waiting.items() if r not in leaving))
        await queue.drain()
        assert not set(engine.marks) & leaving
        assert queue.queued_tokens == 0
        await queue.close()

    asyncio.run(main())


@given(st.lists(st.tuples(st.booleans(), st.lists(lengths, min_size=1, max_size=4)), min_size=1, max_size=10))
def test_an_engine_error_reaches_exactly_its_batches(shape: list[tuple[bool, list[int]]]) -> None:
    engine = Engine()

    async def main() -> None:
        queue = batcher(engine)
        waiting = [
            asyncio.create_task(queue.submit([tokens(POISON if bad and not i else r, n) for i, n in enumerate(texts)]))
            for r, (bad, texts) in enumerate(shape, 100)
        ]
        await asyncio.sleep(0)
        engine.open.set()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        poisoned = [batch for batch in engine.batches if any(one.ids[0] == POISON for one in batch)]
        hit = {int(one.ids[0]) for batch in poisoned for one in batch}
        for r, ((bad, _), answer) in enumerate(zip(shape, answers, strict=True), 100):
            assert isinstance(answer, Backend) == (bad or r in hit)
        assert (await queue.submit([tokens(7, 3)])).vectors.tolist() == [[7, 3]]
        assert queue.queued_tokens == 0
        await queue.close()

    asyncio.run(main())


@given(st.lists(st.lists(lengths, min_size=1, max_size=4), min_size=1, max_size=10), st.integers(1, 300))
def test_admission_is_all_or_nothing(shape: list[list[int]], room: int) -> None:
    engine = Engine()

    async def main() -> None:
        queue = batcher(engine, room)
        waiting = [
            asyncio.create_task(queue.submit([tokens(r, n) for n in texts])) for r, texts in enumerate(shape, 100)
        ]
        await asyncio.sleep(0)
        engine.open.set()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        queued = 0
        for r, (texts, answer) in enumerate(zip(shape, answers, strict=True), 100):
            fits = queued + sum(texts) <= room
            queued += sum(texts) if fits else 0
            assert isinstance(answer, Embedded if fits else Overloaded)
            assert engine.marks.count(r) == (len(texts) if fits else 0)
            assert fits or (isinstance(answer, Overloaded) and 1 <= (answer.retry_after or 0) <= 60)
        await queue.close()

    asyncio.run(main())


def test_neighbours_in_length_share_a_batch() -> None:
    engine = Engine()

    async def main() -> None:
        queue = batcher(engine)
        first = asyncio.create_task(queue.submit([tokens(1, 1)]))
        await asyncio.sleep(0.001)
        texts = [tokens(n, n) for n in (4, 30, 4, 31, 5, 30)]
        second = asyncio.create_task(queue.submit(texts))
        await asyncio.sleep(0)
        engine.open.set()
        await asyncio.gather(first, second)
        await queue.close()

    asyncio.run(main())
    assert [sorted(map(len, batch)) for batch in engine.batches[1:]] == [[30, 31], [30], [4, 4, 5]]


def test_closing_tells_those_who_wait() -> None:
    engine = Engine()

    async def main() -> None:
        queue = batcher(engine)
        running = asyncio.create_task(queue.submit([tokens(1, 1)]))
        await asyncio.sleep(0.001)
        closing = asyncio.create_task(queue.close())
        with pytest.raises(Unhealthy):
            await running
        engine.open.set()
        await closing
        with pytest.raises(Unhealthy):
            await asyncio.wait_for(queue.submit([tokens(2, 1)]), 5)
        assert queue.queued_tokens == 0

    asyncio.run(main())
