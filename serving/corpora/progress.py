"""Progress of work in a thread, such as a snapshot. Whoever waits for the work reports it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.errors import Stopped


class Progress:
    """Number of documents done, estimated from the share of bytes done.

    One thread updates it, any thread may read it.
    """

    def __init__(self) -> None:
        self.documents: int | None = None
        """Total number; None until it is known."""
        self._bytes = 0
        self._done = 0
        self._growing: Path | None = None
        self._left = False

    def leave(self) -> None:
        """Cancel the work at its next progress."""
        self._left = True

    def left(self) -> bool:
        """Return whether the work is cancelled."""
        return self._left

    @property
    def done(self) -> int:
        """Number of documents done so far."""
        growing = self._growing
        done = self._done + (growing.stat().st_size if growing and growing.exists() else 0)
        return (self.documents or 0) * min(done, self._bytes) // max(self._bytes, 1)

    def expect(self, documents: int, bytes: int) -> None:
        """Set the total amount of work."""
        self.documents, self._bytes = documents, bytes

    def add(self, bytes: int) -> None:
        """Add bytes that are done.

        Raises:
            Stopped: the work was cancelled.
        """
        if self._left:
            raise Stopped("stopped")
        self._done += bytes

    @contextmanager
    def growing(self, file: Path) -> Iterator[None]:
        """While the block writes `file` without reporting progress, count the file's bytes as done."""
        self._growing = file
        try:
            yield
            self.add(file.stat().st_size)
        finally:
            self._growing = None
