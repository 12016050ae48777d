"""Threads for blocking work on corpora, shared so that a busy corpus keeps only its own callers waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from serving.unheard import ended

T = TypeVar("T")
THREADS, LANE = 16, 4
"""Of all corpora, and of one. Work beyond that waits without a thread."""


class Lanes:
    """A pool of threads with a lane for each name: no more than `LANE` of them work for it at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="corpora")
        self._lanes: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._left: set[asyncio.Task[Any]] = set()
        """Reads whose callers have gone: a task that nobody holds could vanish."""

    async def run(self, name: str, work: Callable[[], T], leave: Callable[[], None] = lambda: None) -> T:
        """Do `work` in the lane of `name`. A caller who is cancelled calls `leave`, and leaves the lane when the thread
        does, which stops by itself alone; work that has no thread yet is dropped.
        """
        lane = self._lanes.setdefault(name, asyncio.Semaphore(LANE))
        async with lane:
            job = self._threads.submit(work)
            done = asyncio.wrap_future(job)
            try:
                return await asyncio.shield(done)
            except asyncio.CancelledError:
                job.cancel()
                leave()
                await ended(done)
                raise

    async def read(self, name: str, work: Callable[[], T]) -> T:
        """`run` of what changes nothing: a caller who is cancelled goes at once, and the lane waits for the thread."""
        reading = asyncio.create_task(self.run(name, work))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            self._left.add(reading)
            reading.add_done_callback(self._left.discard)
            reading.cancel()
            raise

    def close(self) -> None:
        """Wait for the threads; nothing may be run afterwards."""
        self._threads.shutdown()
