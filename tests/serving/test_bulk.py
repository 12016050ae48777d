"""Tests of bulk work, which neither delays interactive requests nor starves."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.inference import batcher as module
from serving.inference.batcher import BULK_TURN, SMALL_PART, Batcher
from tests.conftest import PATIENCE
from tests.serving.queues import BUDGET, Engine, Stepping, batcher, begun, lengths, tokens

BULK, INTERACTIVE = 1, 2


def submitted(queue: Batcher, mark: int, *lengths: int) -> asyncio.Task[object]:
    return asyncio.create_task(queue.submit([tokens(mark, n) for n in lengths], bulk=mark == BULK))


async def settle(engine: Stepping, batches: int) -> None:
    """Return when this number of batches has begun, and check that no further batch begins."""
    await begun(engine, batches)
    await asyncio.sleep(0.01)
    assert len(engine.begun) == batches


def firsts(engine: Stepping) -> list[int]:
    """Return the number of each batch's first text."""
    return [marks[0] for marks in engine.begun]


@pytest.mark.slow
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
        async with asyncio.timeout(PATIENCE):
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
        waiting.append(submitted(queue, BULK, *[BUDGET // SMALL_PART] * 3))
        waiting += [submitted(queue, INTERACTIVE, BUDGET) for _ in range(2 * BULK_TURN)]
        engine.steps.release(1000)
        await asyncio.gather(*waiting)
        await queue.close()

    asyncio.run(main())
    turn = [INTERACTIVE] * BULK_TURN + [BULK]
    assert firsts(engine) == [*turn, *turn, INTERACTIVE, BULK]


def test_bulk_work_leaves_a_stream_free_for_a_while_after_an_interactive_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RESERVED_SECONDS", 3600)
    engine = Stepping()

    async def main() -> None:
        queue = batcher(engine, streams=2)
        waiting = [submitted(queue, INTERACTIVE, 3)]
        engine.steps.release()
        await waiting[0]
        waiting.append(submitted(queue, BULK, *[BUDGET] * 4))
        await settle(engine, 2)  # The work occupies one of two streams.
        waiting.append(submitted(queue, INTERACTIVE, 3))
        await settle(engine, 3)  # The request runs at once on the other stream.
        assert firsts(engine) == [INTERACTIVE, BULK, INTERACTIVE]
        engine.steps.release(2)  # The two batches are the interactive one, and the bulk work before or after it.
        async with asyncio.timeout(PATIENCE):
            while len(engine.begun) < 4 + (not waiting[2].done()):
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert len(engine.begun) == 4 + (not waiting[2].done()), "one batch of bulk work runs, and no other beside it"
        engine.steps.release(1000)
        await asyncio.gather(*waiting)
        await queue.close()

    asyncio.run(main())
    assert firsts(engine) == [INTERACTIVE, BULK, INTERACTIVE, BULK, BULK, BULK]


def test_the_streams_that_are_not_left_free_share_bulk_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESERVED_SECONDS", 3600)
    engine = Stepping()

    async def main() -> None:
        queue = batcher(engine, streams=3)
        interactive = submitted(queue, INTERACTIVE, 3)
        engine.steps.release()
        await interactive
        waiting = submitted(queue, BULK, *[4] * 12)
        await settle(engine, 3)
        engine.steps.release(1000)
        await waiting
        await queue.close()

    asyncio.run(main())
    assert engine.begun == [[INTERACTIVE], [BULK] * 6, [BULK] * 6]


def test_the_free_stream_helps_when_nobody_has_come_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESERVED_SECONDS", 0.05)
    engine = Stepping()

    async def main() -> None:
        queue = batcher(engine, streams=2)
        interactive = submitted(queue, INTERACTIVE, 3)
        engine.steps.release()
        await interactive
        waiting = submitted(queue, BULK, *[BUDGET] * 4)
        await settle(engine, 3)
        engine.steps.release(1000)
        await waiting
        await queue.close()

    asyncio.run(main())
    assert firsts(engine) == [INTERACTIVE, BULK, BULK, BULK, BULK]


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
