"""Limit on the memory of all request bodies that are being received."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from serving.errors import Overloaded

UNCOUNTED = 65_536
"""Bytes of each body that are always admitted, so that large slow bodies don't keep out small ones."""
RETRY_SECONDS = 1


class Arriving:
    """Counter of the bytes of all bodies being received, beyond the first `UNCOUNTED` of each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0

    @contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Count a body while it arrives. The caller reports its size so far to the yielded function.

        Raises:
            Overloaded: the other bodies leave no room. A body that arrives alone is always admitted.
        """
        counted = 0

        def grown(size: int) -> None:
            nonlocal counted
            more = max(0, size - UNCOUNTED) - counted
            if more and self._bytes > counted and self._bytes + more > self._limit:
                raise Overloaded(
                    f"requests that are being received hold {self._bytes} bytes, the most is {self._limit}",
                    retry_after=RETRY_SECONDS,
                )
            counted += more
            self._bytes += more

        try:
            yield grown
        finally:
            self._bytes -= counted
