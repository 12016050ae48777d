"""Tests of several encoders on one machine's streams: others wait for a batch of a flooded encoder, not for all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.tokenizer import Tokens
from serving.inference.batcher import Batcher
from serving.inference.engine import Embedded
from serving.inference.fair_queue import EngineSlots
from tests.conftest import PATIENCE
from tests.serving.queues import BUDGET, Engine, tokens


@dataclass
class Machine:
    """Machine that records which encoder began each batch. Each batch ends by a step."""

    began: list[str] = field(default_factory=list)
    steps: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def begins(self, encoder: str) -> None:
        self.began.append(encoder)
        assert self.steps.acquire(timeout=PATIENCE)

    async def has_begun(self, batches: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.began) < batches:
                await asyncio.sleep(0.001)


@dataclass
class Stepping(Engine):
    """An encoder of the machine."""

    name: str = ""
    machine: Machine = field(default_factory=Machine)

    def embed(self, batch: Sequence[Tokens], *, alone: bool) -> Embedded:
        self.machine.begins(self.name)
        self.open.set()
        return super().embed(batch, alone=alone)


def on(machine: Machine, name: str, shared: EngineSlots, streams: int) -> tuple[Stepping, Batcher]:
    engine = Stepping(name=name, machine=machine)
    return engine, Batcher(
        engine.embed, max_batch_tokens=BUDGET, max_queued_tokens=10**9, streams=streams, shared=shared
    )


def flood(batcher: Batcher, batches: int) -> list[asyncio.Task[Any]]:
    """Send requests, no two of which fit in one batch."""
    return [asyncio.create_task(batcher.submit([tokens(1, BUDGET)])) for _ in range(batches)]


def play(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            await work()

    asyncio.run(main())


@pytest.mark.parametrize("streams", [1, 2])
def test_a_flood_on_one_encoder_delays_another_by_one_batch(streams: int) -> None:
    machine = Machine()

    async def work() -> None:
        shared = EngineSlots(streams)
        (_, flooded), (_, calm) = (on(machine, name, shared, streams) for name in ("flooded", "calm"))
        waiting = flood(flooded, 20)
        await machine.has_begun(streams)
        for expected in range(1, 6):
            single = asyncio.create_task(calm.submit([tokens(2, 3)]))
            await asyncio.sleep(0.01)
            before = len(machine.began)
            machine.steps.release()
            await machine.has_begun(before + 1)
            assert machine.began[before:] == ["calm"], "the first stream that was free"
            while not single.done():  # Streams of the flooded encoder may end before it.
                machine.steps.release()
                await asyncio.sleep(0.005)
            assert (await single).vectors.tolist() == [[2, 3]]
            assert machine.began.count("calm") == expected
        machine.steps.release(100)
        await asyncio.gather(*waiting)
        await flooded.close()
        await calm.close()

    play(work)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 8)), min_size=2, max_size=4))
def test_on_one_stream_encoders_that_have_work_alternate(encoders: list[tuple[int, int]]) -> None:
    """Check encoders with workers and batches of their own: between two batches of one, each other has at most one."""
    machine = Machine()
    machine.steps.release(1000)

    async def work() -> None:
        shared = EngineSlots(1)
        made = [on(machine, str(i), shared, streams) for i, (streams, _) in enumerate(encoders)]
        waiting = [flood(batcher, n) for (_, batcher), (_, n) in zip(made, encoders, strict=True)]
        for answers in waiting:
            await asyncio.gather(*answers)
        for _, batcher in made:
            await batcher.close()
        assert (shared.idle, shared.busy) == (1, 0)

    play(work)
    for i, (_, batches) in enumerate(encoders):
        own = [place for place, name in enumerate(machine.began) if name == str(i)]
        assert len(own) == batches
        for last, following in pairwise([-1, *own]):
            between = machine.began[last + 1 : following]
            assert len(set(between)) == len(between)


def test_a_text_is_alone_only_if_no_other_encoder_runs() -> None:
    machine = Machine()

    async def work() -> None:
        shared = EngineSlots(2)
        (first, one), (second, other) = (on(machine, name, shared, 2) for name in "ab")
        waiting = flood(one, 1)
        await machine.has_begun(1)
        waiting += flood(other, 1)
        await machine.has_begun(2)
        machine.steps.release(10)
        await asyncio.gather(*waiting)
        await asyncio.gather(*flood(other, 1))
        assert (first.alone, second.alone) == ([True], [False, True])
        await one.close()
        await other.close()

    play(work)


def test_one_that_is_closed_while_it_waits_leaves_the_streams_to_the_others() -> None:
    machine = Machine()

    async def work() -> None:
        shared = EngineSlots(1)
        (_, stays), (_, goes) = (on(machine, name, shared, 1) for name in ("stays", "goes"))
        waiting, lost = flood(stays, 3), flood(goes, 1)
        await machine.has_begun(1)
        await goes.close()
        machine.steps.release(10)
        await asyncio.gather(*waiting)
        (error,) = await asyncio.gather(*lost, return_exceptions=True)
        assert "shutting down" in str(error) and machine.began == ["stays"] * 3
        await stays.close()
        assert shared.idle == 1

    play(work)


def test_a_stream_given_to_one_who_just_left_goes_on() -> None:
    async def work() -> None:
        shared, order = EngineSlots(1), list[str]()

        async def take(name: str, release: asyncio.Event) -> None:
            await shared.take(asyncio.current_task())
            order.append(name)
            await release.wait()
            shared.give()

        first, done = asyncio.Event(), asyncio.Event()
        done.set()
        holding = asyncio.create_task(take("first", first))
        await asyncio.sleep(0)
        leaving, last = asyncio.create_task(take("leaving", done)), asyncio.create_task(take("last", done))
        await asyncio.sleep(0)
        first.set()
        await asyncio.sleep(0)  # `first` ends its batch. `leaving` gets the stream, but does not know it yet.
        leaving.cancel()
        await asyncio.gather(holding, last)
        assert order == ["first", "last"] and leaving.cancelled() and shared.idle == 1

    play(work)
