"""Tests of the batcher's rules for any arrivals, lengths, cancellations and failures."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.tokenizer import Tokens
from serving.errors import Backend, Overloaded, Unhealthy
from serving.inference import batcher as batcher_module
from serving.inference.batcher import CULPRITS, RESERVED_SECONDS, Batcher
from serving.inference.engine import Embedded
from serving.inference.fair_queue import PADDING, Answer
from serving.operations.keys import Key
from serving.operations.limits import Caller, Limits, charged_to
from tests.conftest import PATIENCE
from tests.serving.queues import BUDGET, POISON, Engine, batcher, lengths, tokens

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
            assert answer.vectors.dtype == answer.norms.dtype == np.float32, "the type of the engine"
        assert (queue.queued_tokens, queue.queued_texts) == (0, 0)
        await queue.close()

    asyncio.run(main())
    for batch in engine.batches:
        padded = len(batch) * max(map(len, batch))
        assert len(batch) == 1 or (padded <= BUDGET and padded <= PADDING * sum(map(len, batch)))


def test_padding_of_lengths_as_they_are() -> None:
    """Use log-normal lengths with a mean of 40 and a maximum of 256, as of sentences and paragraphs."""
    numbers = np.random.default_rng(0)

    def drawn(texts: int) -> list[Tokens]:
        sizes = np.clip(np.rint(numbers.lognormal(np.log(40) - 0.5, 1.0, texts)), 3, 256)
        return [tokens(1, int(size)) for size in sizes]

    def padding(requests: Sequence[list[Tokens]], clients: int) -> float:
        engine = Engine()
        engine.open.set()

        async def main() -> None:
            queue = Batcher(engine.embed, max_batch_tokens=4096, max_queued_tokens=10**9)

            async def client(own: Sequence[list[Tokens]]) -> None:
                for texts in own:
                    await queue.submit(texts)

            await asyncio.gather(*(client(requests[i::clients]) for i in range(clients)))
            await queue.close()

        asyncio.run(main())
        padded = sum(len(batch) * max(map(len, batch)) for batch in engine.batches)
        return padded / sum(len(one) for batch in engine.batches for one in batch)

    assert padding([drawn(2000)], 1) <= 1.1
    assert padding([[one] for one in drawn(128 * 8)], 128) <= 1.3


@given(requests, st.data())
def test_cancelled_work_is_never_embedded_and_frees_the_queue(shape: list[list[int]], data: st.DataObject) -> None:
    engine = Engine()

    async def main() -> None:
        queue = batcher(engine)
        first = asyncio.create_task(queue.submit([tokens(1, 1)]))
        await asyncio.sleep(0.001)  # The batch is in the engine now.
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
        assert not set(engine.marks) & leaving
        assert queue.queued_tokens == 0
        await queue.close()

    asyncio.run(main())


@given(st.lists(st.tuples(st.booleans(), st.lists(lengths, min_size=1, max_size=4)), min_size=1, max_size=10))
def test_an_engine_error_reaches_exactly_the_requests_that_cause_it(shape: list[tuple[bool, list[int]]]) -> None:
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
        culprits = sum(bad for bad, _ in shape)
        for (bad, _), answer in zip(shape, answers, strict=True):
            assert isinstance(answer, Backend) == bad or culprits >= CULPRITS
        assert (await queue.submit([tokens(7, 3)])).vectors.tolist() == [[7, 3]]
        assert queue.queued_tokens == 0
        await queue.close()

    asyncio.run(main())


def test_a_broken_engine_fails_a_batch_in_few_runs_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()

    async def main() -> None:
        queue = Batcher(engine.embed, max_batch_tokens=10_000, max_queued_tokens=10**9)
        engine.open.set()
        for most in (50, 50, 50, 20):  # From the fourth batch on, the text is known to fail.
            before = len(engine.batches)
            waiting = [asyncio.create_task(queue.submit([tokens(POISON, 3)])) for _ in range(256)]
            async with asyncio.timeout(PATIENCE):
                answers = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(answer, Backend) for answer in answers)
            assert len(engine.batches) - before <= most
            assert len(caplog.records) == queue.failing
        assert queue.failing and queue.queued_tokens == 0
        assert (await queue.submit([tokens(7, 3)])).vectors.tolist() == [[7, 3]] and not queue.failing
        await queue.close()

    asyncio.run(main())


def test_a_bad_request_among_good_ones_is_no_failure_of_the_engine() -> None:
    engine = Engine()

    async def main() -> None:
        queue = Batcher(engine.embed, max_batch_tokens=10_000, max_queued_tokens=10**9)
        engine.open.set()
        for _ in range(4):
            marks = [POISON if n % 4 == 3 else n + 100 for n in range(200)]
            waiting = [asyncio.create_task(queue.submit([tokens(mark, 3)])) for mark in marks]
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            for mark, answer in zip(marks, answers, strict=True):
                if isinstance(answer, BaseException):
                    assert mark == POISON
                else:
                    assert answer.vectors.tolist() == [[mark, 3]]
        assert not queue.failures
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
            fits = not queued or queued + sum(texts) <= room
            queued += sum(texts) if fits else 0
            assert isinstance(answer, Answer if fits else Overloaded)
            assert engine.marks.count(r) == (len(texts) if fits else 0)
            assert fits or (isinstance(answer, Overloaded) and 1 <= (answer.retry_after or 0) <= 60)
        await queue.close()

    asyncio.run(main())


def test_room_is_measured_in_what_the_engine_computes() -> None:
    engine = Engine()

    async def main() -> None:
        queue = batcher(engine, 16, step=8)
        admitted = [asyncio.create_task(queue.submit([tokens(mark, 1)])) for mark in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="16 tokens are queued, and 8 more"):
            await queue.submit([tokens(3, 1)])
        engine.open.set()
        await asyncio.gather(*admitted)
        await queue.close()

    asyncio.run(main())


def test_one_key_leaves_room_to_the_others() -> None:
    engine = Engine()
    greedy, other = (
        Caller(Key(name=name, sha256="0" * 64, scopes=("read",)), Limits()) for name in ("greedy", "other")
    )

    async def main() -> None:
        queue = batcher(engine, 100)
        with charged_to(greedy):
            admitted = [asyncio.create_task(queue.submit([tokens(mark, 25)])) for mark in (1, 2, 3)]
            await asyncio.sleep(0)
            with pytest.raises(
                Overloaded, match="75 tokens of the key 'greedy' are queued, and 1 more would exceed the key's limit"
            ):
                await queue.submit([tokens(4, 1)])
        with charged_to(other):
            admitted.append(asyncio.create_task(queue.submit([tokens(5, 25)])))
        await asyncio.sleep(0)
        engine.open.set()
        await asyncio.gather(*admitted)
        with charged_to(greedy):
            await queue.submit([tokens(6, 90)])  # A single request may exceed the limit.
        await queue.close()

    asyncio.run(main())


def test_batches_are_small_while_several_keys_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, now = Engine(), 0.0
    monkeypatch.setattr(batcher_module, "perf_counter", lambda: now)
    engine.open.set()
    greedy, other = (
        Caller(Key(name=name, sha256="0" * 64, scopes=("read",)), Limits()) for name in ("greedy", "other")
    )

    async def main() -> None:
        nonlocal now
        queue = batcher(engine)
        for who, mark in ((other, 1), (greedy, 2), (greedy, 3)):
            with charged_to(who):
                await queue.submit([tokens(mark, 8)] * 16)
            now += RESERVED_SECONDS * (mark > 1)
        await queue.close()

    asyncio.run(main())
    sizes = {mark: [len(batch) for batch in engine.batches if batch[0].ids[0] == mark] for mark in (2, 3)}
    assert sizes == {2: [1] * 16, 3: [8, 8]}


@pytest.mark.parametrize("bulk", [False, True])
def test_room_is_given_back_by_the_answer_and_by_bulk_work_text_by_text(bulk: bool) -> None:
    engine = Engine()

    def in_steps(batch: Sequence[Tokens], *, alone: bool) -> Embedded:
        embedded = engine.embed(batch, alone=alone)
        if len(engine.batches) == 1:
            engine.open.clear()
        return embedded

    async def main() -> None:
        queue = Batcher(in_steps, max_batch_tokens=BUDGET, max_queued_tokens=2 * BUDGET)
        first = asyncio.create_task(queue.submit([tokens(1, BUDGET), tokens(2, BUDGET)], bulk=bulk))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await queue.submit([tokens(3, 1)])
        engine.open.set()
        while queue.queued_tokens > BUDGET:
            await asyncio.sleep(0)
        second = asyncio.create_task(queue.submit([tokens(3, BUDGET)]))
        await asyncio.sleep(0)
        assert second.done() != bulk, "half of the first is embedded, and it is not answered"
        engine.open.set()
        await first
        assert isinstance((await asyncio.gather(second, return_exceptions=True))[0], Answer if bulk else Overloaded)
        assert len((await queue.submit([tokens(n, BUDGET) for n in (4, 5)])).vectors) == 2, "all room is there again"
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


def test_an_observer_that_fails_ends_its_batch_alone() -> None:
    seen: list[int] = []

    def observe(lengths: Sequence[int]) -> None:
        seen.append(len(lengths))
        if len(seen) == 1:
            raise ValueError("a bug in the metrics")

    async def main() -> None:
        engine = Engine()
        engine.open.set()
        queue = Batcher(engine.embed, max_batch_tokens=BUDGET, max_queued_tokens=10**9, observe=observe)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(Backend, match="a bug in the metrics"):
                await queue.submit([tokens(1, 1)])
            assert (await queue.submit([tokens(2, 1)])).vectors.tolist() == [[2, 1]]
        await queue.close()

    asyncio.run(main())


def test_a_bug_of_the_batcher_tells_all_who_wait_and_the_next_one_is_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        engine = Engine()
        engine.open.set()
        queue = batcher(engine)
        with monkeypatch.context() as broken:
            broken.setattr(queue, "_next_batch", lambda: 1 // 0)
            waiting = [asyncio.create_task(queue.submit([tokens(mark, 1)])) for mark in (1, 2)]
            async with asyncio.timeout(PATIENCE):
                answers = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(answer, Backend) and "batcher failed" in answer.message for answer in answers)
        async with asyncio.timeout(PATIENCE):
            assert (await queue.submit([tokens(3, 1)])).vectors.tolist() == [[3, 1]]
        assert queue.queued_tokens == 0
        await queue.close()

    asyncio.run(main())
    assert "the batcher's worker failed" in caplog.text and "ZeroDivisionError" in caplog.text


def test_earlier_answers_take_no_memory() -> None:
    engine = Engine()
    engine.open.set()

    async def main() -> None:
        queue = batcher(engine)
        earlier, _ = [weakref.ref((await queue.submit([tokens(mark, 3)])).vectors) for mark in (1, 2)]
        gc.collect()
        assert earlier() is None
        await queue.close()

    asyncio.run(main())


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
