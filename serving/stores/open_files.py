"""Limit on open corpus files: the most recently used stay open."""

from __future__ import annotations

import threading
from typing import Protocol

MOST = 128
"""Maximum corpora with open files. Each takes about 300 KB and three file descriptors, plus two descriptors for every
open reader. Opening a corpus takes half a millisecond."""


class Rests(Protocol):
    """A resource that is opened on demand."""

    def rest(self) -> None:
        """Close the resource, unless it is in use. The user calls `OpenFiles.used` when done."""


class OpenFiles:
    """Limit on open files. Above `most`, the least recently used file is closed, unless it is in use."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: dict[Rests, None] = {}
        """Open files. The most recently used file is last."""

    def used(self, file: Rests) -> None:
        """Record a use of `file`, and close the least recently used file if there are too many."""
        with self._lock:
            self._open.pop(file, None)
            self._open[file] = None
            longest = next(iter(self._open))
            if len(self._open) <= self._most:
                return
            del self._open[longest]
        longest.rest()

    def closed(self, file: Rests) -> None:
        """Forget a file that is closed for good."""
        with self._lock:
            self._open.pop(file, None)
