"""Work that completes even if its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from serving.unheard import ended

T = TypeVar("T")


async def whole(work: Coroutine[Any, Any, T], leave: Callable[[], None] = lambda: None) -> T:
    """Complete `work` even if the caller is cancelled.

    In that case `leave` is called, so that the work can stop early.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        leave()
        await ended(task)
        raise


async def in_thread(work: Callable[[], T], leave: Callable[[], None] = lambda: None) -> T:
    """Run blocking work in a thread. If the caller is cancelled, call `leave`, and wait until the work has ended."""
    return await whole(asyncio.to_thread(work), leave)
