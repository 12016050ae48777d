"""What was used last is kept, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

OVERHEAD = 300
"""Bytes of an entry beside what its owner counts: keys, objects, places in tables."""


class Lru(Generic[K, V]):
    """A mapping whose least recently used entries go when it grows beyond `max_bytes`. For one thread."""

    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """What is kept under `key`, which counts as a use."""
        if not (entry := self._entries.get(key)):
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep `value`, of so many bytes with its key; too large a one is not kept."""
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
