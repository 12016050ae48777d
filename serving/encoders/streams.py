"""The threads in which batches run, shared by the engines of all encoders."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from weakref import WeakKeyDictionary


class Streams:
    """So many batches run side by side, of whichever encoder. A stream goes to the one that had one longest ago.

    The law of waiting: before the next batch of an encoder each other one begins at most one, however many it has.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.idle = number
        self._waiting: dict[object, deque[asyncio.Future[None]]] = {}
        """Of each encoder, in the order they came; nothing is idle while any wait."""
        self._begun = count()
        self._last: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        """When each encoder was last given a stream, counted in streams given."""

    @property
    def busy(self) -> int:
        """Streams that are taken."""
        return self._number - self.idle

    async def take(self, encoder: object) -> None:
        """Return with a stream for a batch of `encoder`, which then gives it back."""
        if self.idle:
            self.idle -= 1
            self._last[encoder] = next(self._begun)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(encoder, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given a stream before it heard that it is not wanted any more
                self.give()
            raise

    def give(self) -> None:
        """Leave a stream to whoever is next."""
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
