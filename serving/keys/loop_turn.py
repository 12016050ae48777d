"""One step of a key in each pass of the event loop: however many of its requests come, others wait for one of them."""

from __future__ import annotations

import asyncio
from collections import deque


class LoopTurn:
    """Steps go on in the order in which they came; one that comes alone goes on at once."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False

    async def take(self) -> None:
        """Return in a pass of the event loop in which no other step has returned."""
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
            if not turn.done():  # its caller is still there
                turn.set_result(None)
                self._take()
