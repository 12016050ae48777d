"""Work that is never left half-way by whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from serving.unheard import ended

T = TypeVar("T")


async def whole(work: Coroutine[Any, Any, T], leave: Callable[[], None] = lambda: None) -> T:
    """Do it to its end, though who waits be cancelled; `leave` then tells it that nobody wants more of it."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        leave()
        await ended(task)
        raise


async def in_thread(work: Callable[[], T], leave: Callable[[], None] = lambda: None) -> T:
    """Blocking work, which stops by itself alone: who is cancelled calls `leave`, and waits for its end."""
    return await whole(asyncio.to_thread(work), leave)
