"""Tests of texts that the batcher embeds on the event loop, because they are short and there is one caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import Mock

import pytest

from models.bundle.tokenizer import Tokens
from serving.errors import Backend
from serving.inference import batcher as batcher_module
from serving.inference.batcher import Batcher
from serving.inference.engine import Embedded
from serving.inference.fair_queue import EngineSlots
from serving.inference.fake_engine import FakeEngine
from serving.operations.context import CONNECTION, holding
from serving.service import Service
from tests.conftest import PATIENCE
from tests.serving.engines import model
from tests.serving.queues import BUDGET, POISON, Engine, batcher, tokens
from tests.serving.sockets import answer, listening, post


@dataclass
class Witness(Engine):
    """Engine that records the thread of each batch."""

    threads: list[int] = field(default_factory=list)

    def embed(self, batch: Sequence[Tokens], *, alone: bool) -> Embedded:
        self.threads.append(threading.get_ident())
        return super().embed(batch, alone=alone)

    def on_loop(self) -> list[bool]:
        return [one == threading.get_ident() for one in self.threads]


@contextmanager
def prepared(monkeypatch: pytest.MonkeyPatch, *, on_the_loop: float = PATIENCE) -> Iterator[Witness]:
    """Yield an engine whose speed is known after the first batch, and count all its batches as brief."""
    monkeypatch.setattr(batcher_module, "RESERVED_SECONDS", 0.0)
    monkeypatch.setattr(batcher_module, "ON_THE_LOOP", on_the_loop)
    engine = Witness()
    engine.open.set()
    yield engine


async def asked(queue: Batcher, connection: Hashable, length: int = 3, mark: int = 7) -> list[list[float]]:
    with holding(CONNECTION, connection):
        found: list[list[float]] = (await queue.submit([tokens(mark, length)])).vectors.tolist()
    return found


def test_only_short_texts_of_the_only_caller_run_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(engine: Witness) -> None:
        queue = batcher(engine)
        for connection in (None, 1, 1, None):  # no connection: work of a job; the speed is known after the first batch
            assert await asked(queue, connection) == [[7.0, 3.0]]
        with holding(CONNECTION, 1):
            await queue.submit([tokens(7, 3), tokens(8, 3)])
            await queue.submit([tokens(7, 3)], bulk=True)
        assert engine.on_loop() == [False, True, True, False, False, False]
        assert (queue.queued_tokens, queue.queued_texts) == (0, 0)
        await queue.close()

    with prepared(monkeypatch) as engine:
        asyncio.run(main(engine))


def test_a_text_that_would_take_long_runs_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(engine: Witness) -> None:
        queue = batcher(engine)
        for _ in range(3):
            await asked(queue, 1, BUDGET)
        assert engine.on_loop() == [False] * 3
        await queue.close()

    with prepared(monkeypatch, on_the_loop=1e-12) as engine:
        asyncio.run(main(engine))


def test_after_another_caller_requests_can_form_batches_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(engine: Witness) -> None:
        queue = batcher(engine)
        await asked(queue, 1)
        await asked(queue, 1)
        monkeypatch.setattr(batcher_module, "RESERVED_SECONDS", PATIENCE)
        await asked(queue, 2)
        engine.open.clear()
        waiting = [asyncio.create_task(asked(queue, number, mark=number)) for number in (2, 3, 4)]
        await asyncio.sleep(0)
        engine.open.set()
        assert [(await one)[0][0] for one in waiting] == [2, 3, 4]
        assert engine.on_loop() == [False, True, False, False]
        assert [len(batch) for batch in engine.batches] == [1, 1, 1, 3]
        await queue.close()

    with prepared(monkeypatch) as engine:
        asyncio.run(main(engine))


def test_callers_of_two_encoders_are_two_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(engine: Witness) -> None:
        shared = EngineSlots(2)
        one, other = (
            Batcher(engine.embed, max_batch_tokens=BUDGET, max_queued_tokens=10**9, streams=2, shared=shared)
            for _ in range(2)
        )
        for _ in range(2):
            await asked(one, 1)
            await asked(other, 1)
        assert engine.on_loop() == [False, False, True, True], "the caller of both"
        monkeypatch.setattr(batcher_module, "RESERVED_SECONDS", PATIENCE)
        for _ in range(2):
            await asked(one, 1)
            await asked(other, 2)
        assert engine.on_loop()[5:] == [False, False, False]
        assert shared.idle == 2
        await one.close()
        await other.close()

    with prepared(monkeypatch) as engine:
        asyncio.run(main(engine))


def test_a_bug_on_the_event_loop_leaves_no_request_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    class BugError(BaseException):
        pass

    async def main(engine: Witness) -> None:
        queue = batcher(engine)
        await asked(queue, 1)
        monkeypatch.setattr(queue, "_embed", Mock(side_effect=BugError))
        with pytest.raises(BugError):
            await asked(queue, 1)
        assert queue.queued_tokens == 0 and not queue._live
        monkeypatch.setattr(queue, "_embed", engine.embed)
        assert await asked(queue, 1) == [[7.0, 3.0]]
        await queue.close()

    with prepared(monkeypatch) as engine:
        asyncio.run(main(engine))


def test_requests_of_one_connection_run_on_the_event_loop_and_those_of_two_in_threads(
    monkeypatch: pytest.MonkeyPatch, make_service: Callable[..., Service]
) -> None:
    monkeypatch.setattr("serving.commands.server.SECONDS_TO_ASK", 0.0)
    body = b'{"inputs": "a"}'

    class WitnessEngine(FakeEngine):
        def __init__(self) -> None:
            self.threads: list[int] = []

        def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
            self.threads.append(threading.get_ident())
            return super().embed(batch, alone=alone)

    witness = WitnessEngine()

    async def main() -> None:
        async with listening(make_service(model(lambda _: witness), port=0)) as (_, connect):
            one, other = await connect(), await connect()

            async def embed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
                writer.write(post(len(body)) + body)
                assert (await answer(reader))[0] == 200
                return witness.threads[-1] == threading.get_ident()

            assert [await embed(*one) for _ in range(3)][1:] == [True, True]
            monkeypatch.setattr(batcher_module, "RESERVED_SECONDS", PATIENCE)
            assert [await embed(*connection) for connection in (other, one, other)] == [False] * 3
            for _, writer in (one, other):
                writer.close()

    with prepared(monkeypatch):
        asyncio.run(main())


def test_a_failure_on_the_event_loop_is_the_callers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(engine: Witness) -> None:
        queue = batcher(engine)
        await asked(queue, 1)
        with pytest.raises(Backend):
            await asked(queue, 1, mark=POISON)
        assert await asked(queue, 1) == [[7.0, 3.0]]
        assert engine.on_loop() == [False, True, True]
        assert queue.queued_tokens == 0
        await queue.close()

    with prepared(monkeypatch) as engine:
        asyncio.run(main(engine))
