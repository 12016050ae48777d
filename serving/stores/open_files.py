"""Which corpora have their files open: those used last."""

from __future__ import annotations

import threading
from typing import Protocol

MOST = 128
"""Each takes three file descriptors, two more for every reader that it keeps, and some 300 KB; opening one takes half
a millisecond."""


class Rests(Protocol):
    """What is opened where it is needed."""

    def rest(self) -> None:
        """Close, unless it is in use now: who uses it says so when they are done."""


class OpenFiles:
    """At most so many of them are open, save those in use."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: dict[Rests, None] = {}
        """The one used last at the end."""

    def used(self, file: Rests) -> None:
        """It has been used; the one that has not been for longest is closed for it."""
        with self._lock:
            self._open.pop(file, None)
            self._open[file] = None
            longest = next(iter(self._open))
            if len(self._open) <= self._most:
                return
            del self._open[longest]
        longest.rest()

    def closed(self, file: Rests) -> None:
        """For good."""
        with self._lock:
            self._open.pop(file, None)
