"""Possible states of documents under overlapping writes.

Writers do not wait for each other, and jobs end after they take effect.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.serving.durability.history import State, Verdict, kind_of


@dataclass(eq=False)
class Change:
    """A new version of documents, or None for their removal. It takes effect at a moment between `sent` and `by`."""

    version: int | None
    sent: float
    by: float = math.inf
    """Moment of its acknowledgement, or of its job's acceptance. Infinite without any."""
    done: float = math.inf
    """Moment from which it is visible, unless a later change takes effect. Infinite if it may never be."""


@dataclass
class Overlaps:
    """Changes by several writers.

    A job's rows take effect when the job is accepted, and all are visible when it ends. Moments are counted: each is
    later than all before.
    """

    changes: dict[str, list[Change]] = field(default_factory=dict)
    """Changes by document, in the order of sending."""
    versions: int = 0
    _moment: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_version(self) -> int:
        """Return a version that is greater than all before."""
        with self._lock:
            self.versions += 1
            return self.versions

    def now(self) -> int:
        """Return the current moment."""
        with self._lock:
            return self._tick()

    def send(self, names: Iterable[str], version: int | None) -> Change:
        """Record that a change of these documents is in progress."""
        with self._lock:
            change = Change(version, self._tick())
            for name in names:
                self._of(name).append(change)
            return change

    def accept(self, change: Change) -> None:
        """Record that the change takes effect by now. Reads may see it later."""
        with self._lock:
            change.by = self._tick()

    def finish(self, change: Change) -> None:
        """Record that the change is visible."""
        with self._lock:
            change.done = self._tick()
            change.by = min(change.by, change.done)

    def refuse(self, name: str, change: Change) -> None:
        """Record that the server refused to change the document."""
        with self._lock:
            self._of(name).remove(change)

    def cut(self) -> None:
        """Record that the server is gone. Unanswered changes take effect by now, or never."""
        with self._lock:
            now = self._tick()
            for changes in self.changes.values():
                for change in changes:
                    change.by = min(change.by, now)

    def possible(self, name: str, since: float) -> set[int | None]:
        """Return the versions that a read from the moment `since` may see, which are those not replaced by then."""
        with self._lock:
            changes = self._of(name)
            begun = max(change.sent for change in changes if change.done < since)
            return {change.version for change in changes if change.by >= begun}

    def judge(self, found: State, since: float, verdict: Verdict, view: str) -> None:
        """Check that `found` is allowed, and note the errors."""
        verdict.reads += 1
        for name in found.keys() | self.changes.keys():
            self.judge_one(name, found.get(name), since, verdict, view)

    def judge_one(self, name: str, seen: int | None, since: float, verdict: Verdict, view: str) -> None:
        """Check one document."""
        allowed = self.possible(name, since)
        if seen not in allowed:
            kind = kind_of(seen, allowed, self.versions)
            verdict.note(kind, f"{view}: {name} is {seen}, may be {sorted(map(str, allowed))}")

    def settle(self, found: State) -> None:
        """Make the state found final. No changes are in progress."""
        with self._lock:
            now = self._tick()
            self.changes = {name: [Change(version, now, now, now)] for name, version in found.items()}

    def _of(self, name: str) -> list[Change]:
        return self.changes.setdefault(name, [Change(None, 0, 0, 0)])

    def _tick(self) -> int:
        self._moment += 1
        return self._moment
