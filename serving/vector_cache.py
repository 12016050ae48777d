"""Vectors of texts that were embedded before, and one run for texts that are asked for twice at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np

from models.tokenizer import Tokens
from serving.lru import Lru
from serving.ports import Floats
from serving.request import Answer


class Submit(Protocol):
    """The queue of an encoder."""

    async def __call__(self, texts: Sequence[Tokens], *, bulk: bool = False) -> Answer:
        """Vectors and norms of N texts, in their order."""


class _Row(NamedTuple):
    vector: Floats
    norm: np.float32


_Rows = dict[bytes, _Row]


class _Landed(NamedTuple):
    rows: _Rows
    begun: float


@dataclass(eq=False)
class _Flight:
    """Texts on their way through the engine, and how many requests wait for any of them."""

    task: asyncio.Task[_Landed]
    waiting: int = 0


@dataclass(eq=False)
class VectorCache:
    """Between requests and the queue of one encoder. The key is what the encoder reads, the token ids.

    A text that is on its way for one request is not sent again for another. Whoever leaves takes with him what nobody
    else waits for. An error is of the request that sent the text: another one that waited for it sends it anew.
    """

    submit: Submit
    max_bytes: int
    observe: Callable[[int, int], None] = lambda *_: None
    """Hears of each request how many of its texts were here, or on their way, and how many were sent."""
    _kept: Lru[bytes, _Row] = field(init=False)
    _flights: dict[bytes, _Flight] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._kept = Lru(self.max_bytes)

    @property
    def size(self) -> int:
        """Bytes of what is kept."""
        return self._kept.bytes

    async def embed(self, texts: Sequence[Tokens], *, bulk: bool = False) -> Answer:
        """As the queue itself; what was kept had begun when it was asked for.

        Raises:
            Whatever `submit` raises for those that are sent for this request.
        """
        keys = [one.ids.tobytes() for one in texts]
        needed = dict(zip(keys, texts, strict=True))
        rows = {key: row for key in needed if (row := self._kept.get(key))}
        shared = {flight for key in needed if key not in rows and (flight := self._flights.get(key))}
        sent = {key: one for key, one in needed.items() if key not in rows and key not in self._flights}
        self.observe(sum(key not in sent for key in keys), sum(key in sent for key in keys))
        landed = [_Landed(rows, perf_counter()), *await self._landed(shared, sent, bulk)]
        rows = {key: row for flight in landed for key, row in flight.rows.items()}
        while missing := {key: one for key, one in needed.items() if key not in rows}:  # their request failed
            landed += await self._landed([], missing, bulk)
            rows |= landed[-1].rows
        vectors, norms = zip(*(rows[key] for key in keys), strict=True)
        begun = max(landed[0].begun, min(flight.begun for flight in landed[1:] or landed))
        return Answer(np.stack(vectors), np.array(norms, dtype=np.float32), begun)

    async def _landed(self, shared: Iterable[_Flight], sent: dict[bytes, Tokens], bulk: bool) -> list[_Landed]:
        """Those flights of other requests that come through, and one for the texts that are `sent`."""
        own = [self._take_off(sent, bulk)] if sent else []
        flights = [*own, *shared]
        for flight in flights:
            flight.waiting += 1
        try:
            await asyncio.wait([flight.task for flight in flights]) if flights else None
        finally:
            for flight in flights:
                flight.waiting -= 1
                if not flight.waiting:
                    flight.task.cancel()
        well = [flight for flight in shared if not flight.task.cancelled() and not flight.task.exception()]
        return [flight.task.result() for flight in (*own, *well)]

    def _take_off(self, texts: dict[bytes, Tokens], bulk: bool) -> _Flight:
        flight = _Flight(asyncio.create_task(self._run(texts, bulk)))
        self._flights |= dict.fromkeys(texts, flight)

        def landed(task: asyncio.Task[_Landed]) -> None:
            for key in texts:
                if self._flights.get(key) is flight:
                    del self._flights[key]
            if not task.cancelled():
                task.exception()  # whoever waits has heard of it; if nobody does, nobody is to be told

        flight.task.add_done_callback(landed)
        return flight

    async def _run(self, texts: dict[bytes, Tokens], bulk: bool) -> _Landed:
        vectors, norms, begun = await self.submit(list(texts.values()), bulk=bulk)
        rows = {key: _Row(vector.copy(), norm) for key, vector, norm in zip(texts, vectors, norms, strict=True)}
        for key, row in rows.items():
            self._kept.put(key, row, len(key) + row.vector.nbytes)
        return _Landed(rows, begun)
