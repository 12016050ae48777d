"""Bulk work behind interactive requests: it neither delays them nor starves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.tokenizer import Tokens
from serving import batcher as module
from serving.batcher import BULK_PART, BULK_TURN, Batcher
from serving.ports import Embedded
from tests.serving.queues import BUDGET, Engine, batcher, lengths, tokens

BULK, INTERACTIVE = 1, 2


@dataclass
class Stepping(Engine):
    """Writes a batch down when it begins, and ends one, whichever it is, for each release of `steps`."""

    steps: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def embed(self, batch: Sequence[Tokens], *, alone: bool) -> Embedded:
        self.begun.append(int(batch[0].ids[0]))
        assert self.steps.acquire(timeout=5)
        self.open.set()
        return super().embed(batch, alone=alone)

    begun: list[int] = field(default_factory=list)
    """The mark of each batch's first text."""


def submitted(queue: Batcher, mark: int, *lengths: int) -> asyncio.Task[object]:
    return asyncio.create_task(queue.submit([tokens(mark, n) for n in lengths], bulk=mark == BULK))


async def settle(engine: Stepping, batches: int) -> None:
    """Return when so many batches have begun; a moment later there must be no more of them."""
    async with asyncio.timeout(5):
        while len(engine.begun) < batches:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert len(engine.begun) == batches


@given(
    st.lists(st.tuples(st.booleans(), st.lists(lengths, min_size=1, max_size=6)), min_size=1, max_size=12),
    st.integers(1, 3),
)
def test_everyone_is_answered(shape: list[tuple[bool, list[int]]], streams: int) -> None:
    async def main() -> None:
        engine = Engine()
        queue = batcher(engine, streams=streams)
        waiting = [
            asyncio.create_task(queue.submit([tokens(mark, n) for n in texts], bulk=bulk))
            for mark, (bulk, texts) in enumerate(shape, 100)
        ]
        await asyncio.sleep(0)
        engine.open.set()
        async with asyncio.timeout(5):
            answers = await asyncio.gather(*waiting)
        for mark, ((_, texts), answer) in enumerate(zip(shape, answers, strict=True), 100):
            assert answer.vectors.tolist() == [[mark, n] for n in texts]
        assert (queue.queued_tokens, queue.queued_texts) == (0, 0)
        await queue.close()

    asyncio.run(main())


def test_interactive_requests_come_first_and_bulk_work_after_so_many_of_them() -> None:
    engine = Stepping()

    async def main() -> None:
        queue = batcher(engine)
        waiting = [submitted(queue, INTERACTIVE, BUDGET)]
        await settle(engine, 1)
        waiting.append(submitted(queue, BULK, *[BUDGET // BULK_PART] * 3))
        waiting += [submitted(queue, INTERACTIVE, BUDGET) for _ in range(2 * BULK_TURN)]
        engine.steps.release(1000)
        await asyncio.gather(*waiting)
        await queue.close()

    asyncio.run(main())
    turn = [INTERACTIVE] * BULK_TURN + [BULK]
    assert engine.begun == [*turn, *turn, INTERACTIVE, BULK]


def test_bulk_work_leaves_a_stream_free_for_a_while_after_an_interactive_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RESERVED_SECONDS", 1.5)
    engine = Stepping()

    async def main() -> None:
        queue = batcher(engine, streams=2)
        waiting = [submitted(queue, INTERACTIVE, 3)]
        engine.steps.release()
        await waiting[0]
        waiting.append(submitted(queue, BULK, *[BUDGET] * 4))
        await settle(engine, 2)  # one of two streams
        waiting.append(submitted(queue, INTERACTIVE, 3))
        await settle(engine, 3)  # at once, on the other
        assert engine.begun == [INTERACTIVE, BULK, INTERACTIVE]
        engine.steps.release(2)  # of two of these: the interactive one, and the bulk work before or behind it
        async with asyncio.timeout(5):
            while len(engine.begun) < 4 + (not waiting[2].done()):
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert len(engine.begun) == 4 + (not waiting[2].done()), "one batch of bulk work runs, and no other beside it"
        async with asyncio.timeout(5):  # nobody comes, and the free stream helps
            while len(engine.begun) < 5:
                await asyncio.sleep(0.01)
        engine.steps.release(1000)
        await asyncio.gather(*waiting)
        await queue.close()

    asyncio.run(main())
    assert engine.begun == [INTERACTIVE, BULK, INTERACTIVE, BULK, BULK, BULK]


def test_bulk_work_by_itself_has_all_streams() -> None:
    engine = Stepping()

    async def main() -> None:
        queue = batcher(engine, streams=3)
        waiting = submitted(queue, BULK, *[BUDGET] * 6)
        await settle(engine, 3)
        engine.steps.release(1000)
        await waiting
        await queue.close()

    asyncio.run(main())


def test_a_single_stream_takes_bulk_work_in_small_batches_while_others_may_come() -> None:
    engine = Stepping()

    async def main() -> None:
        queue = batcher(engine)
        engine.steps.release(1000)
        await submitted(queue, BULK, *[4] * 16)
        await submitted(queue, INTERACTIVE, 4)
        await submitted(queue, BULK, *[4] * 16)
        await queue.close()

    asyncio.run(main())
    assert [len(batch) for batch in engine.batches] == [16, 1, *[2] * 8]
