"""Tests of texts that the batcher embeds on the event loop, because they are short and there is one caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from models.bundle.tokenizer import Tokens
from serving.errors import Backend
from serving.inference import batcher as batcher_module
from serving.inference.batcher import Batcher
from serving.inference.engine import Embedded
from serving.operations.context import on_connection
from tests.conftest import PATIENCE
from tests.serving.queues import BUDGET, POISON, Engine, batcher, tokens


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
    with on_connection(connection):
        found: list[list[float]] = (await queue.submit([tokens(mark, length)])).vectors.tolist()
    return found


def test_only_short_texts_of_the_only_caller_run_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(engine: Witness) -> None:
        queue = batcher(engine)
        for connection in (None, 1, 1, None):  # no connection: work of a job; the speed is known after the first batch
            assert await asked(queue, connection) == [[7.0, 3.0]]
        with on_connection(1):
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


def test_a_failure_on_the_event_loop_is_the_callers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(engine: Witness) -> None:
        queue = batcher(engine)
        await asked(queue, 1)
        with pytest.raises(Backend):
            await asked(queue, 1, mark=POISON)
        assert await asked(queue, 1) == [[7.0, 3.0]]
        assert engine.on_loop() == [False, True, True]
        await asyncio.sleep(0)
        assert queue.queued_tokens == 0
        await queue.close()

    with prepared(monkeypatch) as engine:
        asyncio.run(main(engine))
