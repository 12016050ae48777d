"""Helpers for tests of the batcher: numbered texts, and engines that record their batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from models.bundle.tokenizer import Tokens
from serving.inference.batcher import Batcher
from serving.inference.engine import Embedded
from tests.conftest import PATIENCE

BUDGET = 64
POISON = 13


def tokens(mark: int, length: int) -> Tokens:
    return Tokens(np.full(length, mark, dtype=np.int64), length)


@dataclass
class Engine:
    """Engine with the vector (number, length) for each text. It records its batches, which wait for `open`."""

    batches: list[list[Tokens]] = field(default_factory=list)
    open: threading.Event = field(default_factory=threading.Event)
    alone: list[bool] = field(default_factory=list)
    """Value of `alone` for each batch."""

    def embed(self, batch: Sequence[Tokens], *, alone: bool) -> Embedded:
        assert self.open.wait(PATIENCE)
        self.batches.append(list(batch))
        self.alone.append(alone)
        if any(one.ids[0] == POISON for one in batch):
            raise ValueError("poisoned")
        rows = np.array([[one.ids[0], len(one)] for one in batch], dtype=np.float32)
        return Embedded(rows, rows[:, 0])

    @property
    def marks(self) -> list[int]:
        return [int(one.ids[0]) for batch in self.batches for one in batch]


@dataclass
class Stepping(Engine):
    """Engine that records a batch when it begins, and ends one of them for each release of `steps`."""

    steps: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    begun: list[list[int]] = field(default_factory=list)
    """Numbers of each batch's texts."""

    def embed(self, batch: Sequence[Tokens], *, alone: bool) -> Embedded:
        self.begun.append([int(one.ids[0]) for one in batch])
        assert self.steps.acquire(timeout=PATIENCE)
        self.open.set()
        return super().embed(batch, alone=alone)


async def begun(engine: Stepping, batches: int) -> None:
    """Return when this number of batches has begun."""
    async with asyncio.timeout(PATIENCE):
        while len(engine.begun) < batches:
            await asyncio.sleep(0.001)


def batcher(
    engine: Engine, queued: int = 10**9, *, streams: int = 1, step: int = 1, overtaking: bool = False
) -> Batcher:
    return Batcher(
        engine.embed,
        max_batch_tokens=BUDGET,
        max_queued_tokens=queued,
        streams=streams,
        length_step=step,
        overtaking=overtaking,
    )


lengths = st.integers(1, 100)
