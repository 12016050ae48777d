"""Tests of a batcher with an engine that embeds several batches at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.tokenizer import Tokens
from serving.errors import Unhealthy
from serving.inference.batcher import Batcher
from serving.inference.engine import Embedded
from serving.inference.fair_queue import Answer
from serving.operations.keys import Key
from serving.operations.limits import Caller, Limits, charged_to
from tests.conftest import PATIENCE
from tests.serving.queues import BUDGET, Engine, Stepping, batcher, begun, lengths, tokens


@dataclass
class Counting(Engine):
    """Engine that counts its concurrent batches."""

    running: int = 0
    most: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def embed(self, batch: Sequence[Tokens], *, alone: bool) -> Embedded:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            return super().embed(batch, alone=alone)
        finally:
            with self.lock:
                self.running -= 1


requests = st.lists(st.lists(lengths, min_size=1, max_size=8), min_size=1, max_size=12)


@given(requests, st.integers(1, 4), st.sampled_from([1, 16]))
def test_everyone_gets_their_own_vectors_whatever_stream_made_them(
    shape: list[list[int]], streams: int, step: int
) -> None:
    engine = Counting()

    async def main() -> None:
        queue = batcher(engine, streams=streams, step=step)
        marked = [[tokens(100 * r + i, n) for i, n in enumerate(texts)] for r, texts in enumerate(shape, 1)]
        waiting = [asyncio.create_task(queue.submit(texts)) for texts in marked]
        await asyncio.sleep(0)
        engine.open.set()
        for texts, answer in zip(marked, await asyncio.gather(*waiting), strict=True):
            assert answer.vectors.tolist() == [[one.ids[0], len(one)] for one in texts]
        assert (queue.queued_tokens, queue.queued_texts) == (0, 0)
        await queue.close()

    asyncio.run(main())
    assert engine.most <= streams
    for batch in engine.batches:
        longest = max(map(len, batch))
        assert len(batch) == 1 or len(batch) * (longest + -longest % step) <= BUDGET


def served(*shape: list[int], streams: int) -> Counting:
    """Return an engine that has embedded these requests, all of which arrived before the first batch ended."""
    engine = Counting()

    async def main() -> None:
        queue = batcher(engine, streams=streams)
        waiting = [asyncio.create_task(queue.submit([tokens(1, n) for n in texts])) for texts in shape]
        async with asyncio.timeout(PATIENCE):
            while engine.running < min(streams, len(shape)):
                await asyncio.sleep(0.001)
        engine.open.set()
        await asyncio.gather(*waiting)
        await queue.close()

    asyncio.run(main())
    return engine


def test_idle_streams_share_a_request() -> None:
    assert sorted(map(len, served([4] * 12, streams=3).batches)) == [4, 4, 4]


def test_two_requests_run_side_by_side() -> None:
    assert served([50], [50], streams=2).most == 2
    assert served([50], [50], streams=1).most == 1


def test_many_streams_all_run_side_by_side() -> None:
    streams = 33  # more than the threads that a pool of Python has by default
    assert served(*[[50]] * streams, streams=streams).most == streams


def test_only_a_text_that_nobody_else_waits_with_or_runs_beside_has_the_engine_alone() -> None:
    assert served([9], streams=2).alone == [True]
    assert served([9, 9], streams=2).alone == [False, False]
    assert served([9], [9], streams=2).alone == [False, False]


def test_a_single_behind_a_large_request_runs_when_the_first_stream_is_free() -> None:
    engine = Stepping()

    async def main() -> None:
        queue = batcher(engine, streams=2)
        waiting = [asyncio.create_task(queue.submit([tokens(1, 30) for _ in range(100)]))]
        await begun(engine, 2)
        waiting.append(asyncio.create_task(queue.submit([tokens(2, 3)])))
        await asyncio.sleep(0)
        engine.steps.release()
        await begun(engine, 3)
        assert 2 in engine.begun[2]
        engine.steps.release(1000)
        await asyncio.gather(*waiting)
        await queue.close()

    asyncio.run(main())


def caller(name: str) -> Caller:
    return Caller(Key(name=name, sha256="0" * 64, scopes=("read",)), Limits())


async def asks(queue: Batcher, who: Caller | None, mark: int) -> asyncio.Task[Answer]:
    with charged_to(who):
        task = asyncio.create_task(queue.submit([tokens(mark, BUDGET)]))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("streams", [1, 2])
def test_a_text_of_another_key_runs_beside_batches_that_cannot_be_stopped(streams: int) -> None:
    engine, greedy, other, third = Stepping(), *map(caller, ("greedy", "other", "third"))

    async def main() -> None:
        queue = batcher(engine, streams=streams, overtaking=True)
        tasks = [await asks(queue, greedy, 1) for _ in range(streams + 2)]
        await begun(engine, streams)
        tasks += [await asks(queue, who, mark) for who, mark in ((other, 2), (third, 3))]
        await begun(engine, streams + 1)
        await asyncio.sleep(0.02)
        assert engine.begun == [[1]] * streams + [[2]], "one batch beside the streams, and of another key"
        for _ in tasks:
            engine.steps.release()
        await asyncio.gather(*tasks)
        assert len(engine.begun) == len(tasks)
        await queue.close()

    asyncio.run(main())


@pytest.mark.parametrize(("who", "overtaking"), [("greedy", True), (None, True), ("other", False)])
def test_nothing_runs_beside_for_the_same_key_nor_without_keys_nor_on_a_gpu(who: str | None, overtaking: bool) -> None:
    engine, callers = Stepping(), {"greedy": caller("greedy"), "other": caller("other"), None: None}

    async def main() -> None:
        queue = batcher(engine, overtaking=overtaking)
        tasks = [await asks(queue, callers["greedy" if who else None], 1), await asks(queue, callers[who], 2)]
        await asyncio.sleep(0.02)
        assert engine.begun == [[1]]
        for _ in tasks:
            engine.steps.release()
        await asyncio.gather(*tasks)
        await queue.close()

    asyncio.run(main())


def test_a_batch_beside_the_streams_is_over_before_the_batcher_is_closed() -> None:
    engine, greedy, other = Stepping(), caller("greedy"), caller("other")

    async def main() -> None:
        queue = batcher(engine, overtaking=True)
        tasks = [await asks(queue, greedy, 1), await asks(queue, other, 2)]
        await begun(engine, 2)
        closing = asyncio.create_task(queue.close())
        for _ in tasks:
            engine.steps.release()
        await closing
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(answer, Unhealthy) for answer in answers)

    asyncio.run(main())
