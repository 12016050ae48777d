"""How far work in a thread is, told by the job that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from serving.errors import Stopped
from serving.jobs import Running

SECONDS = 1.0
"""Between two looks."""


class Progress:
    """Documents done, as large a part of them as of the bytes. Written by one thread, read by any."""

    def __init__(self) -> None:
        self.documents: int | None = None
        """In all; None until it is known."""
        self._bytes = 0
        self._done = 0
        self._growing: Path | None = None
        self._left = False

    def leave(self) -> None:
        """Nobody wants it any more: what it tells next ends it."""
        self._left = True

    def left(self) -> bool:
        """Whether it is so."""
        return self._left

    @property
    def done(self) -> int:
        """Documents, so far."""
        growing = self._growing
        done = self._done + (growing.stat().st_size if growing and growing.exists() else 0)
        return (self.documents or 0) * min(done, self._bytes) // max(self._bytes, 1)

    def expect(self, documents: int, bytes: int) -> None:
        """So much there will be to do."""
        self.documents, self._bytes = documents, bytes

    def add(self, bytes: int) -> None:
        """So many more are done.

        Raises:
            Stopped: nobody wants it any more.
        """
        if self._left:
            raise Stopped("stopped")
        self._done += bytes

    @contextmanager
    def growing(self, file: Path) -> Iterator[None]:
        """Around what writes `file` and says nothing until the end: the bytes in it are done."""
        self._growing = file
        try:
            yield
            self.add(file.stat().st_size)
        finally:
            self._growing = None


@asynccontextmanager
async def told(job: Running) -> AsyncIterator[Progress]:
    """Around work of the `job` in a thread, which is given this: what it says there, the job tells."""
    progress = Progress()

    async def tell() -> None:
        job.total = progress.documents
        await job.tell(progress.done)

    async def follow() -> None:
        while True:
            await asyncio.sleep(SECONDS)
            await tell()

    following = asyncio.create_task(follow())
    try:
        yield progress
    finally:
        following.cancel()
        await asyncio.wait([following])
    await tell()
