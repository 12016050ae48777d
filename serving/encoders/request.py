"""A request in the queue of an engine, answered row by row."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from models.tokenizer import Tokens
from serving.encoders.turns import Waiting
from serving.ports import Embedded, Floats


class Answer(NamedTuple):
    """Result of a request."""

    vectors: Floats
    """(N, D), unit length."""
    norms: Floats
    """(N,), before normalisation."""
    begun: float
    """Time at which the engine got the request's first text, in seconds of `time.perf_counter`."""


@dataclass(eq=False, slots=True, kw_only=True)
class Request(Waiting):
    """Texts that are embedded in one batch or several."""

    texts: Sequence[Tokens]
    future: asyncio.Future[Answer]
    bulk: bool
    missing: int
    """Number of rows without a vector."""
    waiting: int
    """Tokens that count as queued."""
    claim: int
    """Tokens of the queue's room that this request takes; see `Batcher.check_room`."""
    begun: float | None = None
    answer: Embedded | None = None
    """Filled row by row, from the first batch on."""

    @property
    def gone(self) -> bool:
        """Return whether the request was answered, failed, or cancelled by its caller."""
        return self.future.done()

    def take(self, row: int, vector: Floats, norm: np.float32) -> int:
        """Store a row (D,) of the answer, and complete the answer with the last row.

        Return the number of tokens that no longer count as queued.
        """
        if self.answer is None:
            texts = len(self.texts)
            self.answer = Embedded(np.empty((texts, len(vector)), vector.dtype), np.empty(texts, norm.dtype))
        self.answer.vectors[row] = vector
        self.answer.norms[row] = norm
        self.missing -= 1
        done = min(self.lengths[row], self.waiting)
        self.waiting -= done
        if not self.missing and not self.gone:
            self.future.set_result(Answer(*self.answer, begun=self.begun or 0.0))
        return done
