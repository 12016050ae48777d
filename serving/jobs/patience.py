"""Work that no caller waits for: it gives way to what callers wait for, and waits for a server that is busy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

from serving.errors import Backend, Damaged, InsufficientStorage, NoRoom, Overloaded, Unhealthy
from serving.priority import bulk_work

T = TypeVar("T")
TRIES = 6
"""Of what fails in the engine, each after twice the time of the one before."""


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Do it in the lane of bulk work, and again while the server is busy or going, its disk is full or its engine fails
    for a while.

    Raises:
        ServiceError: another one; also what is damaged on disk and a key's share that is taken, which no waiting mends.
    """
    failures = count(1)
    while True:
        try:
            with bulk_work():
                return await work()
        except Overloaded as error:
            await asyncio.sleep(error.retry_after or 1)
        except (Damaged, NoRoom):
            raise
        except (Unhealthy, InsufficientStorage):
            await asyncio.sleep(1)
        except Backend:
            if (failed := next(failures)) == TRIES:
                raise
            await asyncio.sleep(2.0 ** (failed - 2))
