"""What a document may be while writes of it overlap: no writer waits for another, and jobs end after they count."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.durability.history import State, Verdict, kind_of


@dataclass(eq=False)
class Change:
    """A new version of documents, or None for their removal. It counts from a moment between `sent` and `by`."""

    version: int | None
    sent: float
    by: float = math.inf
    """When it was acknowledged, or its job accepted; inf: it was not."""
    done: float = math.inf
    """From when on it is there, unless another counts later; inf: it may never be."""


@dataclass
class Overlaps:
    """Changes by whomever. A job's rows count as written when it was accepted, and are all there when it has ended.

    Moments are counted: each is later than all before.
    """

    changes: dict[str, list[Change]] = field(default_factory=dict)
    """By document, in the order in which they were sent."""
    versions: int = 0
    _moment: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_version(self) -> int:
        """Greater than all before."""
        with self._lock:
            self.versions += 1
            return self.versions

    def now(self) -> int:
        """A moment."""
        with self._lock:
            return self._tick()

    def send(self, names: Iterable[str], version: int | None) -> Change:
        """A change of these documents is on its way."""
        with self._lock:
            change = Change(version, self._tick())
            for name in names:
                self._of(name).append(change)
            return change

    def accept(self, change: Change) -> None:
        """It counts from now on at the latest; whoever asks may see it later."""
        with self._lock:
            change.by = self._tick()

    def finish(self, change: Change) -> None:
        """It is there."""
        with self._lock:
            change.done = self._tick()
            change.by = min(change.by, change.done)

    def refuse(self, name: str, change: Change) -> None:
        """The document was not changed, says the server."""
        with self._lock:
            self._of(name).remove(change)

    def cut(self) -> None:
        """The server has gone: what it did not answer counts from now on at the latest, or never."""
        with self._lock:
            now = self._tick()
            for changes in self.changes.values():
                for change in changes:
                    change.by = min(change.by, now)

    def possible(self, name: str, since: float) -> set[int | None]:
        """What a read that began at the moment `since` may see: all that nothing that was there by then replaced."""
        with self._lock:
            changes = self._of(name)
            begun = max(change.sent for change in changes if change.done < since)
            return {change.version for change in changes if change.by >= begun}

    def judge(self, found: State, since: float, verdict: Verdict, view: str) -> None:
        """Whether `found` is what may be there; what is not is noted."""
        verdict.reads += 1
        for name in found.keys() | self.changes.keys():
            self.judge_one(name, found.get(name), since, verdict, view)

    def judge_one(self, name: str, seen: int | None, since: float, verdict: Verdict, view: str) -> None:
        """The same of one document."""
        allowed = self.possible(name, since)
        if seen not in allowed:
            kind = kind_of(seen, allowed, self.versions)
            verdict.note(kind, f"{view}: {name} is {seen}, may be {sorted(map(str, allowed))}")

    def settle(self, found: State) -> None:
        """Nothing is on its way: what was found is what is there."""
        with self._lock:
            now = self._tick()
            self.changes = {name: [Change(version, now, now, now)] for name, version in found.items()}

    def _of(self, name: str) -> list[Change]:
        return self.changes.setdefault(name, [Change(None, 0, 0, 0)])

    def _tick(self) -> int:
        self._moment += 1
        return self._moment
