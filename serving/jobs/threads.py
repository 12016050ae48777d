"""Work that is never left half-way by whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from serving.unheard import ended

T = TypeVar("T")


async def whole(work: Coroutine[Any, Any, T]) -> T:
    """Do it to its end, though who waits be cancelled."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await ended(task)
        raise


async def in_thread(work: Callable[[], T]) -> T:
    """Blocking work, which can't be stopped: who is cancelled waits for its end."""
    return await whole(asyncio.to_thread(work))
