"""Fairness between keys: one step of a key in each pass of the event loop, however many requests it has."""

from __future__ import annotations

import asyncio
from collections import deque


class LoopTurn:
    """Steps of a key, first in, first out. A step without others before it runs at once."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False

    async def take(self) -> None:
        """Wait for a pass of the event loop in which no other step runs."""
        if not self._taken:
            self._take()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _take(self) -> None:
        self._taken = True
        asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        self._taken = False
        while self._waiting and not self._taken:
            turn = self._waiting.popleft()
            if not turn.done():  # its caller still waits
                turn.set_result(None)
                self._take()
