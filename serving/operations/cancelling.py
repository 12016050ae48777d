"""Cancellation of blocking work whose caller has left, whose deadline has passed, or whose server stops.

A thread can't be stopped from outside. Long work therefore calls `check_cancelled` where it can stop without harm.
These places are each read of the store, each condition of a filter and each block of vectors. SQLite calls
`is_cancelled` by itself. A write never checks, so that a write that has begun is finished.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from time import thread_time
from typing import TypeVar

from serving.errors import Stopped
from serving.operations.context import holding

T = TypeVar("T")


class CancelToken:
    """Token of one piece of blocking work. Cancelling its `parent` cancels it, too."""

    def __init__(self, parent: CancelToken | None = None) -> None:
        self.parent = parent
        self.cpu_seconds = 0.0
        """CPU seconds of the thread that does the work, without waiting and without other threads."""
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        return self._cancelled or (self.parent is not None and self.parent.cancelled)

    def cancel(self) -> None:
        """Make the work stop at its next check. Any thread may call this."""
        self._cancelled = True

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` in this thread, with this token for its checks.

        Raises:
            Stopped: the token was cancelled, maybe before the work began.
        """
        began = thread_time()
        try:
            with holding(_CURRENT, self):
                check_cancelled()
                return work()
        finally:
            self.cpu_seconds += thread_time() - began


_CURRENT: ContextVar[CancelToken | None] = ContextVar("cancel_token", default=None)


def is_cancelled() -> bool:
    """Return whether the current work should stop. Work without a token is never cancelled."""
    token = _CURRENT.get()
    return token is not None and token.cancelled


def check_cancelled() -> None:
    """Raise `Stopped` if the current work should stop."""
    if is_cancelled():
        raise Stopped("nobody waits for it any more")


def for_others() -> AbstractContextManager[None]:
    """Keep a step running if its caller leaves, since other callers need it too. It still stops with the server."""
    token = _CURRENT.get()
    return holding(_CURRENT, token and token.parent)


def uninterrupted() -> AbstractContextManager[None]:
    """Keep checks from stopping a write and the steps that must follow it."""
    return holding(_CURRENT, None)
