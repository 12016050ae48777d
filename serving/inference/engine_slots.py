"""Turns of several encoders on the streams of one machine."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from weakref import WeakKeyDictionary


class EngineSlots:
    """A fixed number of streams, shared by encoders.

    A free stream goes to the waiting encoder whose last turn is oldest. While an encoder waits for a stream, each other
    encoder therefore starts at most one batch.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.idle = number
        self._waiting: dict[object, deque[asyncio.Future[None]]] = {}
        """Waiting batches of each encoder in order of arrival. No stream is idle while a batch waits."""
        self._begun = count()
        self._last: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        """Sequence number of the last turn of each encoder."""
        self.owners: Counter[Hashable] = Counter()
        """Number of texts in running batches, by owner."""
        self.overtaken = False
        """True while a batch runs beside the streams."""

    @property
    def busy(self) -> int:
        """Number of streams in use."""
        return self._number - self.idle

    @contextmanager
    def running(self, owners: Iterable[Hashable]) -> Iterator[None]:
        """Count the owners of a batch while the batch runs."""
        counted = Counter(owners)
        self.owners += counted
        try:
            yield
        finally:
            self.owners -= counted

    async def take(self, encoder: object) -> None:
        """Wait for a stream for a batch of `encoder`. The caller must call `give` after the batch."""
        if self.idle:
            self.idle -= 1
            self._last[encoder] = next(self._begun)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(encoder, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # a stream was given to it before it noticed the cancellation
                self.give()
            raise

    def give(self) -> None:
        """Give a stream back. The next waiting encoder gets the stream."""
        while self._waiting:
            encoder = min(self._waiting, key=lambda one: self._last.get(one, -1))
            turns = self._waiting[encoder]
            turn = turns.popleft()
            if not turns:
                del self._waiting[encoder]
            if not turn.done():
                self._last[encoder] = next(self._begun)
                turn.set_result(None)
                return
        self.idle += 1
