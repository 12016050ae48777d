"""Blocking work that ends when nobody waits for it: its caller has left, its time is up, or the server goes.

A thread can't be ended from outside. Work that may last long calls `check_cancelled` where it can stop without harm:
at each read of the store, each condition of a filter, each block of vectors. SQLite asks `is_cancelled` by itself. A
write never asks: what was begun is ended.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from time import thread_time
from typing import TypeVar

from serving.context import holding
from serving.errors import Stopped

T = TypeVar("T")


class CancelToken:
    """Of one piece of blocking work; cancelled with its `parent`, if it has one."""

    def __init__(self, parent: CancelToken | None = None) -> None:
        self.parent = parent
        self.cpu_seconds = 0.0
        """That the thread of the work has taken so far: neither waiting nor what other threads did for it."""
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether the work is to end."""
        return self._cancelled or (self.parent is not None and self.parent.cancelled)

    def cancel(self) -> None:
        """End the work at its next check, from any thread."""
        self._cancelled = True

    def run(self, work: Callable[[], T]) -> T:
        """Do `work` in this thread, where its checks ask this token.

        Raises:
            Stopped: it was cancelled, maybe before it began.
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
    """Whether the work under way is to end; work without a token never is."""
    token = _CURRENT.get()
    return token is not None and token.cancelled


def check_cancelled() -> None:
    """Raise `Stopped` if the work under way is to end."""
    if is_cancelled():
        raise Stopped("nobody waits for it any more")


def for_others() -> AbstractContextManager[None]:
    """Around a step that others need too: it goes on if its caller leaves, and ends with the server."""
    token = _CURRENT.get()
    return holding(_CURRENT, token and token.parent)


def uninterrupted() -> AbstractContextManager[None]:
    """Around a write and what must follow it: no check within ends it."""
    return holding(_CURRENT, None)
