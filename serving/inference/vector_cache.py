"""Cache of vectors. Simultaneous requests for the same text share one run of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np

from models.bundle.tokenizer import Tokens
from models.runtimes.base import Floats
from serving.inference.fair_queue import Answer
from serving.operations.limits import Caller, current_caller
from serving.operations.lru import Lru


class Submit(Protocol):
    """Function that embeds texts, as `Batcher.submit` does."""

    async def __call__(self, texts: Sequence[Tokens], *, bulk: bool = False) -> Answer: ...


class _Row(NamedTuple):
    vector: Floats
    norm: np.float32


_Landed = tuple[dict[bytes, _Row], float]
"""Vectors by the token ids of their texts, and the time at which the engine started with the first text."""

_Place = tuple[bytes, bool, Caller | None]
"""The token ids of a text, and the `bulk` flag and the API key of its request."""


@dataclass(eq=False)
class _Flight:
    """A text that is being embedded, and the number of requests that wait for its vector."""

    task: asyncio.Task[_Landed]
    waiting: int = 0


class VectorCache:
    """Cache of vectors in front of one encoder's queue.

    The cache key of a vector is the token ids of its text, because a vector depends on nothing else.

    If exactly one vector of a request is not cached, the request shares a run of the engine with simultaneous requests
    that lack only this vector, too. The requests must have the same API key and the same priority. If the run fails,
    all these requests fail. If all callers leave, the run is cancelled. A request that needs several vectors from the
    engine never waits for another request's run.
    """

    def __init__(self, submit: Submit, max_bytes: int, observe: Callable[[int, int], None] = lambda *_: None) -> None:
        """Create the cache. For each request, it calls `observe` with two numbers.

        The first number counts texts whose vector was cached or already being computed. The second number counts texts
        that were sent to the engine.
        """
        self._submit, self._observe = submit, observe
        self.kept: Lru[bytes, _Row] = Lru(max_bytes)
        self._flights: dict[_Place, _Flight] = {}
        """Texts that are being embedded."""

    async def embed(self, texts: Sequence[Tokens], *, bulk: bool = False) -> Answer:
        """Embed texts, using cached vectors. If all texts are cached, `begun` in the answer is the time of the call."""
        asked = perf_counter()
        keys = [one.ids.tobytes() for one in texts]
        rows = {key: row for key in keys if (row := self.kept.get(key))}
        missing = {key: one for key, one in zip(keys, texts, strict=True) if key not in rows}
        alone = next(iter(missing)) if len(missing) == 1 else None
        flight = self._flights.get((alone, bulk, current_caller())) if alone else None
        sent = 0 if flight else sum(key in missing for key in keys)
        self._observe(len(keys) - sent, sent)
        begun = asked
        if missing:
            coming = self._shared(alone, missing, bulk) if alone else self._run(missing, bulk)
            fresh, started = await coming
            rows, begun = rows | fresh, max(asked, started)
        vectors, norms = zip(*(rows[key] for key in keys), strict=True)
        return Answer(np.stack(vectors), np.array(norms, dtype=np.float32), begun)

    async def _shared(self, key: bytes, text: dict[bytes, Tokens], bulk: bool) -> _Landed:
        """Return the vector of a single text. If no run of the engine computes this vector yet, start such a run."""
        place = key, bulk, current_caller()
        if not (flight := self._flights.get(place)):
            flight = self._flights[place] = _Flight(asyncio.create_task(self._run(text, bulk)))
            flight.task.add_done_callback(lambda _: self._leave(place, flight))
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                self._leave(place, flight)
                flight.task.cancel()

    def _leave(self, place: _Place, flight: _Flight) -> None:
        """Remove `flight` from `_flights`, so that later requests for its text start a new flight.

        If `_flights` already has a newer flight at `place`, keep that one.
        """
        if self._flights.get(place) is flight:
            del self._flights[place]

    async def _run(self, texts: dict[bytes, Tokens], bulk: bool) -> _Landed:
        vectors, norms, begun = await self._submit(list(texts.values()), bulk=bulk)
        rows = {key: _Row(vector.copy(), norm) for key, vector, norm in zip(texts, vectors, norms, strict=True)}
        for key, row in rows.items():
            self.kept.put(key, row, len(key) + row.vector.nbytes)
        return rows, begun
