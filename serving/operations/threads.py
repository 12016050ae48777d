"""Blocking work in threads. If its caller is cancelled, the work is either completed or stopped.

A thread can't be stopped from outside. Long work therefore calls `check_cancelled` at points where it can stop without
harm: at each read of the store, each condition of a filter and each block of vectors. SQLite calls `is_cancelled`
itself. A write never calls `check_cancelled`, so a write that has begun is always finished.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from time import perf_counter, sleep, thread_time
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from serving.errors import Overloaded, ServiceError, Stopped, shutting_down
from serving.operations.context import holding
from serving.operations.limits import CPU_BURST, PATIENT, RETRY_SECONDS, Caller, charge, current_caller, others_wait

log = logging.getLogger(__name__)
T = TypeVar("T")
Share = Literal["read", "write", "containers"]
THREADS, CORPUS_THREADS = 16, 8
"""Maximum number of threads for all corpora together, and for one corpus. Further work waits in a queue."""
WAITING = 256
"""Maximum number of steps of one key that wait for the key's threads. The limit applies to each kind of work in
`Share`."""
TOKENS_PER_SECOND = 1000
"""Tokens that are charged to a key for one second of CPU time. One token is thus one millisecond."""

SLICE_SECONDS = 0.002
"""Seconds between two checks whether long work must wait for short requests of other API keys."""
NAP_SECONDS = 0.001

# Work is cancelled if its caller has left, its deadline has passed, or the server is stopping.


class CancelToken:
    """Cancellation token for one piece of blocking work.

    If the `parent` is cancelled, this token is cancelled, too.
    """

    def __init__(self, parent: CancelToken | None = None, caller: Caller | None = None) -> None:
        self.parent = parent
        self._caller = caller
        """API key whose long work waits for short requests of other API keys. None means that the work never waits."""
        self._slice_ends = 0.0
        self._counted = 0.0
        """CPU time of the thread, in seconds, that `cpu_seconds` already includes."""
        self.cpu_seconds = 0.0
        """CPU seconds that the work has used in its thread and in its child processes, without waiting time."""
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        return self._cancelled or (self.parent is not None and self.parent.cancelled)

    def cancel(self) -> None:
        """Make the work stop at its next check. Any thread may call this method."""
        self._cancelled = True

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the current thread. When `work` calls `check_cancelled`, this cancellation token is checked.

        Raises:
            Stopped: this cancellation token was cancelled, possibly before the work began.
        """
        self._counted = thread_time()
        self._wait_for_others()
        try:
            with holding(_CURRENT, self):
                check_cancelled()
                return work()
        finally:
            self._count()

    def give_way(self) -> None:
        """Wait for short requests of other API keys if the API key of the work has exceeded its share of a CPU.

        The check happens at most once every `SLICE_SECONDS`, and never in a block of `without_waiting`.
        """
        if self._caller and not _HURRIED.get() and perf_counter() >= self._slice_ends:
            self._count()
            self._wait_for_others()

    def _wait_for_others(self) -> None:
        if caller := self._caller:
            while caller.cpu_share.wait() > CPU_BURST and others_wait(caller) and not self.cancelled:
                sleep(NAP_SECONDS)
            self._slice_ends = perf_counter() + SLICE_SECONDS

    def _count(self) -> None:
        """Add the CPU time that the thread has used since the last call to the totals of the work and its API key."""
        before, self._counted = self._counted, thread_time()
        self.cpu_seconds += self._counted - before
        if self._caller:
            self._caller.cpu_share.take(self._counted - before)


_CURRENT: ContextVar[CancelToken | None] = ContextVar("cancel_token", default=None)
_HURRIED: ContextVar[bool] = ContextVar("hurried", default=False)
"""True in the `with` block of `without_waiting`."""


def is_cancelled() -> bool:
    """Return whether the current work should stop. Work without a `CancelToken` is never cancelled.

    If the API key of the work has exceeded its share of a CPU, first wait for short requests of other API keys.
    """
    token = _CURRENT.get()
    if token is None:
        return False
    token.give_way()
    return token.cancelled


def check_cancelled() -> None:
    """Raise `Stopped` if the current work was cancelled."""
    if is_cancelled():
        raise Stopped("no caller waits for the result any more")


def spend(cpu_seconds: float) -> None:
    """Count the CPU time of an ended child process as CPU time of the work that runs in this context."""
    if token := _CURRENT.get():
        token.cpu_seconds += cpu_seconds


def for_others() -> AbstractContextManager[None]:
    """Continue the work in the `with` block even if the caller leaves, because other callers need the result, too.

    The work still stops when the server stops.
    """
    token = _CURRENT.get()
    return holding(_CURRENT, token and token.parent)


def without_waiting() -> AbstractContextManager[None]:
    """Let the work in the `with` block continue without a pause, even if its API key has used more than its CPU share.

    Otherwise, the work would wait for short requests of other API keys. These requests may need the lock that the work
    holds in the block.
    """
    return holding(_HURRIED, True)


def uninterrupted() -> AbstractContextManager[None]:
    """Disable cancellation in the `with` block, for a write and for the steps that must follow it."""
    return holding(_CURRENT, None)


# The following functions complete work after its caller was cancelled.


async def run_to_end(work: Coroutine[Any, Any, T], on_cancel: Callable[[], None] = lambda: None) -> T:
    """Complete `work` even if its caller is cancelled.

    If the caller is cancelled, `on_cancel` is called, so that the work can stop early.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        on_cancel()
        await log_errors_of(task)
        raise


async def in_thread(work: Callable[[], T], on_cancel: Callable[[], None] = lambda: None) -> T:
    """Run blocking work in a thread.

    If the caller is cancelled, call `on_cancel`, and wait until the work has ended.
    """
    return await run_to_end(asyncio.to_thread(work), on_cancel)


async def log_errors_of(work: asyncio.Future[Any]) -> None:
    """Wait until `work` ends, after its caller was cancelled. Log the exception of `work`, except for a `ServiceError`.

    If the caller is cancelled again, the wait continues. The caller must keep its locks and its places in limits until
    the work has ended.
    """
    work.add_done_callback(_log_error)
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])


def _log_error(work: asyncio.Future[Any]) -> None:
    if not work.cancelled() and (error := work.exception()) and not isinstance(error, ServiceError):
        log.error("work failed after its caller was cancelled", exc_info=error)


# All corpora share these threads. Each corpus has its own limit, so that a busy corpus delays only its own callers.


class CorpusThreads:
    """A thread pool that limits how many threads work at the same time for each name, such as the name of a corpus.

    Each API key also has a limit on reads, and another limit on writes. A long write, such as a restore, therefore
    does not delay the searches of its key.
    """

    def __init__(self, each: int = CORPUS_THREADS) -> None:
        """Create the pool. At most `each` threads work at the same time for one name, such as the name of a corpus."""
        self._each = each
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="corpora")
        self._corpora: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._shares: WeakValueDictionary[tuple[str, Share, int], asyncio.Semaphore] = WeakValueDictionary()
        """Semaphores by API key, kind of work, and the key's current maximum number of threads."""
        self._held: Counter[tuple[str, Share]] = Counter()
        """Number of steps that use a thread or wait for one, by API key and kind of work."""
        self._going = CancelToken()
        """Parent token of all work that can be stopped. If it is cancelled, this work stops."""
        self._left: set[asyncio.Task[Any]] = set()
        """Tasks of reads whose callers have left. The set refers to them, because they would otherwise be
        garbage-collected."""

    async def run(self, name: str, work: Callable[[], T], on_cancel: Callable[[], None] = lambda: None) -> T:
        """Run `work` in a thread, within the limit on threads for `name` and the API key's limit on writes.

        `name` is usually the name of a corpus. If the caller is cancelled, `on_cancel` is called. Work that has started
        counts towards the limits until it has ended. Work that has not started is dropped.

        Raises:
            Overloaded: `WAITING` writes of the API key already wait for a thread.
        """
        async with self._share("write"):
            return await self._in_thread_of(name, work, on_cancel)

    async def _in_thread_of(self, name: str, work: Callable[[], T], on_cancel: Callable[[], None]) -> T:
        places = self._corpora.setdefault(name, asyncio.Semaphore(self._each))
        async with places:
            job = self._threads.submit(work)
            done = asyncio.wrap_future(job)
            try:
                return await asyncio.shield(done)
            except asyncio.CancelledError:
                job.cancel()
                on_cancel()
                await log_errors_of(done)
                raise

    async def stoppable(self, name: str, work: Callable[[], T], *, charged: bool = False) -> T:
        """Run work that calls `check_cancelled`. The work stops when its caller is cancelled or the server stops.

        The work counts towards the limit of `name` and the API key's limit on reads. With `charged`, the CPU time of
        the work is charged to the key, even if the work fails.

        Raises:
            Unhealthy: the server is stopping.
            Overloaded: `WAITING` reads of the API key already wait for a thread.
        """
        token, share = CancelToken(self._going, current_caller()), self._share("read")
        try:
            async with share:
                return await self._in_thread_of(name, partial(token.run, work), token.cancel)
        except Stopped:
            raise shutting_down() from None
        finally:
            if charged:
                charge(token.cpu_seconds * TOKENS_PER_SECOND, begun=True)

    async def read(self, name: str, work: Callable[[], T], *, charged: bool = False) -> T:
        """Run `work`, which calls `check_cancelled` and changes nothing.

        If the caller is cancelled, the call ends immediately. The work may still run until its next call of
        `check_cancelled`, and counts towards the limits until it has ended. The limits and `charged` are those of
        `stoppable`.

        Raises:
            Unhealthy: the server is stopping.
            Overloaded: `WAITING` reads of the API key already wait for a thread.
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
        """Cancel the work of all calls of `stoppable` and `read`. Later calls of these methods raise `Unhealthy`."""
        self._going.cancel()

    def containers(self) -> AbstractAsyncContextManager[None]:
        """Allow only one `with` block of this method at a time for the caller's API key.

        A request whose body has many lists and objects runs in this block while the parsed body is in memory. Python's
        garbage collector scans all parsed bodies in one pass, and blocks all threads meanwhile. With several such
        bodies of one key, all threads would be blocked for longer.
        """
        return self._share("containers")

    @asynccontextmanager
    async def _share(self, what: Share) -> AsyncIterator[None]:
        """Limit how many `with` blocks of the kind `what` the current API key runs at the same time.

        Further blocks wait. Without a key, there is no limit.

        Raises:
            Overloaded: `WAITING` blocks of this kind already wait.
        """
        if (caller := current_caller()) is None:
            yield
            return
        name, threads = caller.key.name, 1 if what == "containers" else caller.limits.threads
        if self._held[name, what] >= threads + WAITING and not PATIENT.get():
            raise Overloaded(
                f"{WAITING} requests already wait for the threads of the key {name!r}", retry_after=RETRY_SECONDS
            )
        self._held[name, what] += 1
        try:
            async with self._shares.setdefault((name, what, threads), asyncio.Semaphore(threads)):
                yield
        finally:
            self._held[name, what] -= 1
            if not self._held[name, what]:
                del self._held[name, what]

    def close(self) -> None:
        """Wait until all threads have ended. No method may be called after this."""
        self._threads.shutdown()
