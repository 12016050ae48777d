"""What the tests of the batcher stand on: texts that are marks, and an engine that remembers its batches."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from models.tokenizer import Tokens
from serving.batcher import Batcher
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
    alone: list[bool] = field(default_factory=list)
    """What each of them was told."""

    def embed(self, batch: Sequence[Tokens], *, alone: bool) -> Embedded:
        assert self.open.wait(5)
        self.batches.append(list(batch))
        self.alone.append(alone)
        if any(one.ids[0] == POISON for one in batch):
            raise ValueError("poisoned")
        rows = np.array([[one.ids[0], len(one)] for one in batch], dtype=np.float32)
        return Embedded(rows, rows[:, 0])

    @property
    def marks(self) -> list[int]:
        return [int(one.ids[0]) for batch in self.batches for one in batch]


def batcher(engine: Engine, queued: int = 10**9, *, streams: int = 1, step: int = 1) -> Batcher:
    return Batcher(engine.embed, max_batch_tokens=BUDGET, max_queued_tokens=queued, streams=streams, length_step=step)


lengths = st.integers(1, 100)
