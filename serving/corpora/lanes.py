"""Threads for blocking work on corpora, shared so that a busy corpus keeps only its own callers waiting."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from serving.cancelling import CancelToken
from serving.errors import Overloaded, Stopped, going
from serving.keys.limits import RETRY_SECONDS, charge, is_patient, payer
from serving.unheard import ended

T = TypeVar("T")
Share = Literal["read", "write"]
THREADS, LANE = 16, 8
"""Of all corpora, and of one. Work beyond that waits without a thread."""
WAITING = 256
"""Steps of requests that wait for the threads of one key."""
TOKENS_PER_SECOND = 1000
"""What a key pays for a second of a thread: a token for each millisecond."""


class Lanes:
    """A pool of threads with a lane for each name: no more than `LANE` of them work for it at a time.

    What reads for a key also takes one of the threads that the key may have at a time, and what writes one of as many
    others, so that a long restore doesn't keep the key's searches waiting.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="corpora")
        self._lanes: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._shares: WeakValueDictionary[tuple[str, Share, int], asyncio.Semaphore] = WeakValueDictionary()
        """By the key, and by how many threads it may have now."""
        self._held: Counter[tuple[str, Share]] = Counter()
        """Steps that have a thread of a key, or wait for one."""
        self._going = CancelToken()
        """Of all that can be stopped."""
        self._left: set[asyncio.Task[Any]] = set()
        """Reads whose callers have gone: a task that nobody holds could vanish."""

    async def run(self, name: str, work: Callable[[], T], leave: Callable[[], None] = lambda: None) -> T:
        """Do `work` in the lane of `name`. A caller who is cancelled calls `leave`, and leaves the lane when the thread
        does, which stops by itself alone; work that has no thread yet is dropped.

        Raises:
            Overloaded: `WAITING` steps wait for the key's threads.
        """
        async with self._share("write"):
            return await self._in_lane(name, work, leave)

    async def _in_lane(self, name: str, work: Callable[[], T], leave: Callable[[], None]) -> T:
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

    async def stoppable(self, name: str, work: Callable[[], T], *, charged: bool = False) -> T:
        """Do what asks `check_cancelled`: it ends when its caller is cancelled or the server goes. Where it is
        `charged`, the key pays for the time that it took, however it ended.

        Raises:
            Unhealthy: the server goes.
            Overloaded: as `run`.
        """
        token, share = CancelToken(self._going), self._share("read")
        try:
            async with share:
                return await self._in_lane(name, partial(token.run, work), token.cancel)
        except Stopped:
            raise going() from None
        finally:
            if charged:
                charge(token.cpu_seconds * TOKENS_PER_SECOND, begun=True)

    async def read(self, name: str, work: Callable[[], T], *, charged: bool = False) -> T:
        """`stoppable`, of what changes nothing: a caller who is cancelled goes at once, and the lane waits for the
        thread.
        """
        reading = asyncio.create_task(self.stoppable(name, work, charged=charged))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            self._left.add(reading)
            reading.add_done_callback(self._left.discard)
            reading.cancel()
            raise

    def stop(self) -> None:
        """End all that is `stoppable`, also what comes from now on."""
        self._going.cancel()

    @asynccontextmanager
    async def _share(self, what: Share) -> AsyncIterator[None]:
        """One of the threads of the key that pays; where nobody does, any thread."""
        if (caller := payer()) is None:
            yield
            return
        name, threads = caller.key.name, caller.threads
        if self._held[name, what] >= threads + WAITING and not is_patient():
            raise Overloaded(f"{WAITING} requests wait for the threads of the key {name!r}", retry_after=RETRY_SECONDS)
        self._held[name, what] += 1
        try:
            async with self._shares.setdefault((name, what, threads), asyncio.Semaphore(threads)):
                yield
        finally:
            self._held[name, what] -= 1
            if not self._held[name, what]:
                del self._held[name, what]

    def close(self) -> None:
        """Wait for the threads; nothing may be run afterwards."""
        self._threads.shutdown()
