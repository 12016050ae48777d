"""Streams in which batches run, shared by the engines of all encoders."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from weakref import WeakKeyDictionary


class Streams:
    """A fixed number of streams. A free stream goes to the waiting encoder that got one longest ago.

    Fairness: before the next batch of an encoder, each other encoder begins at most one, however many it has waiting.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.idle = number
        self._waiting: dict[object, deque[asyncio.Future[None]]] = {}
        """Waiting batches of each encoder in order of arrival. While any wait, no stream is idle."""
        self._begun = count()
        self._last: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        """Number of the last stream given to each encoder."""

    @property
    def busy(self) -> int:
        """Number of streams in use."""
        return self._number - self.idle

    async def take(self, encoder: object) -> None:
        """Wait for a stream for a batch of `encoder`, which must give it back."""
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
        """Pass a stream to the next encoder."""
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
