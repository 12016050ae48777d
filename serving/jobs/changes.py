"""Notification of changes of jobs."""

from __future__ import annotations

import asyncio


class Changes:
    """Events of awaited jobs. Each is set at the job's next change."""

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}

    def next(self, id: str) -> asyncio.Event:
        """Return the event that is set at the next change of the job."""
        return self._events.setdefault(id, asyncio.Event())

    def tell(self, id: str) -> None:
        """Set the event of a job that has changed."""
        if event := self._events.pop(id, None):
            event.set()

    def tell_all(self) -> None:
        """Set all events, since no more changes will come."""
        for id in list(self._events):
            self.tell(id)


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, and return whether it was set within `seconds`."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
