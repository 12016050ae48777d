"""Limit on open corpus files: the most recently used stay open."""

from __future__ import annotations

import threading
from typing import Protocol

MOST = 128
"""Maximum corpora with open files. Each takes three file descriptors, two more for every reader that it keeps, and
about 300 KB. Opening one takes half a millisecond."""


class Rests(Protocol):
    """A resource that is opened on demand."""

    def rest(self) -> None:
        """Close, unless in use. Its user calls `OpenFiles.used` when done."""


class OpenFiles:
    """Least-recently-used list of at most `most` open files. Files in use may exceed it."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: dict[Rests, None] = {}
        """The most recently used is last."""

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
