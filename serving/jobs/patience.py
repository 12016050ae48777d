"""Retries of background work, which waits for interactive requests and for a busy server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

from serving.errors import Backend, Damaged, InsufficientStorage, NoRoom, Overloaded, Unhealthy
from serving.operations.context import bulk_work

T = TypeVar("T")
TRIES = 6
"""Attempts if the engine fails. The delay doubles after each attempt."""


async def retry_while_busy(work: Callable[[], Awaitable[T]]) -> T:
    """Do bulk work; retry while the server is overloaded or stopping, the disk is full or the engine fails.

    Raises:
        ServiceError: an error that waiting does not solve, such as damaged data or a key's full disk quota.
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
