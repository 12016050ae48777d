"""Who waits to hear that a job has changed."""

from __future__ import annotations

import asyncio


class Changes:
    """An event for each job that somebody waits for, until it is told."""

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}

    def next(self, id: str) -> asyncio.Event:
        """Set when the job changes after now."""
        return self._events.setdefault(id, asyncio.Event())

    def tell(self, id: str) -> None:
        """It has changed."""
        if event := self._events.pop(id, None):
            event.set()

    def tell_all(self) -> None:
        """Whatever was waited for, nothing more comes."""
        for id in list(self._events):
            self.tell(id)


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether it was, as soon as it is."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
