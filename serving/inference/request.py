"""A request in the batcher's queue, and its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from models.bundle.tokenizer import Tokens
from models.runtimes.base import Floats
from serving.inference.engine import Embedded
from serving.inference.fair_queue import Waiting


class Answer(NamedTuple):
    """Vectors and norms of a request's texts."""

    vectors: Floats
    """(N, D) unit vectors of N texts. For `EachToken` texts, (T, H) vectors of all T tokens, not normalised."""
    norms: Floats
    """Lengths of the vectors before normalisation, of shape (N,) or (T,)."""
    begun: float
    """Time at which the engine started to embed the request's first text, in seconds of `time.perf_counter`."""


@dataclass(eq=False, slots=True, kw_only=True)
class Request(Waiting):
    """Texts of one caller. They may be embedded in several batches."""

    texts: Sequence[Tokens]
    future: asyncio.Future[Answer]
    bulk: bool
    missing: int
    """Number of texts without a vector."""
    waiting: int
    """Number of this request's tokens that `Batcher.queued_tokens` still includes."""
    claim: int
    """Number of this request's padded tokens that count towards the queue's limit. See `Batcher.check_room`."""
    places: Sequence[int | slice]
    """Index of each text's vector in the answer. For token vectors, slice of the text's vectors in the answer."""
    begun: float | None = None
    answer: Embedded | None = None
    """Vectors and norms of the texts that are already embedded. None before the first batch."""

    @property
    def gone(self) -> bool:
        """True if the request was answered, has failed, or was cancelled by its caller."""
        return self.future.done()

    def take(self, row: int, vector: Floats, norm: Floats | np.float32) -> int:
        """Store the vector (D,) of one text, or the vectors (L, H) of its tokens, with their norms.

        After the last missing text, complete the answer. Return the number of tokens that are no longer queued.
        """
        if self.answer is None:
            last = self.places[-1]
            height = last.stop if isinstance(last, slice) else last + 1
            self.answer = Embedded(np.empty((height, vector.shape[-1]), vector.dtype), np.empty(height, norm.dtype))
        place = self.places[row]
        self.answer.vectors[place] = vector
        self.answer.norms[place] = norm
        self.missing -= 1
        done = min(self.lengths[row], self.waiting)
        self.waiting -= done
        if not self.missing and not self.gone:
            self.future.set_result(Answer(*self.answer, begun=self.begun or 0.0))
        return done
