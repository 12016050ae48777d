"""Least-recently-used cache, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

OVERHEAD = 300
"""Estimated bytes that an entry needs in addition to its `size`, for objects and table slots."""


class Lru(Generic[K, V]):
    """Mapping that deletes its least recently used entries when it exceeds `max_bytes`. Not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value of `key`, or None. The entry becomes the most recently used one."""
        if not (entry := self._entries.get(key)):
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Store `value`.

        `size` is the number of bytes of the value and its key. A value that is larger than the cache is not stored.
        """
        self._drop(key)
        size += OVERHEAD
        if size > self._max_bytes:
            return
        self._entries[key] = value, size
        self.bytes += size
        while self.bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: K) -> None:
        if entry := self._entries.pop(key, None):
            self.bytes -= entry[1]
