"""Bodies on their way: how much memory they take together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from serving.errors import Overloaded

UNCOUNTED = 65_536
"""Bytes of each body that are always let in: large ones that take their time do not shut out those of a few texts."""
RETRY_SECONDS = 1


class Arriving:
    """Counts the bytes of all bodies that are being received, beyond the first `UNCOUNTED` of each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0

    @contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Around the arrival of one, which tells what this gives its size as it grows.

        Raises:
            Overloaded: the others leave no room for it; one that comes alone is always admitted.
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
