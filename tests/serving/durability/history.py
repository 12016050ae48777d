"""History of writes: acknowledged ones, unanswered ones, and the states that reads may therefore see.

A trial compares reads with the history. Its outcome has a bound for each requirement.
"""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.stress.trial import Bound

State = Mapping[str, int]
"""Versions of documents by id."""
KINDS = ("lost", "back", "phantom", "in part", "torn")
"""Kinds of errors: acknowledged and missing · deleted and present · never sent · half of a write · text of another
version.
"""
_WORDS = ("river", "stone", "paper", "music", "winter", "garden", "engine", "mirror", "harbour", "candle", "forest")


def text(document: str, version: int) -> str:
    """Return the text of a document's version. Its words distinguish it from every other text."""
    drawn = (zlib.crc32(f"{document} {version} {i}".encode()) for i in range(6))
    return f"{document} v{version} " + " ".join(_WORDS[number % len(_WORDS)] for number in drawn)


def body(document: str, version: int, writer: str) -> dict[str, Any]:
    """Return the document as it is uploaded."""
    return {
        "id": document,
        "text": text(document, version),
        "metadata": {"writer": writer, "version": version, "odd": bool(version % 2)},
    }


@dataclass
class Writes:
    """The sequential writes of one writer: each is sent after the answer to the previous one.

    Let m be `acknowledged` at the start of a read. The read may see the state after m writes, or after any later write
    that was sent before the read ended. It sees each write completely or not at all. The same holds after a restart,
    and the state found then becomes final.
    """

    name: str
    states: list[State] = field(default_factory=lambda: [{}])
    """States after 0, 1, 2 … of the sent writes."""
    acknowledged: int = 0
    versions: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_version(self) -> int:
        """Return a version that is greater than all before."""
        self.versions += 1
        return self.versions

    def send(self, changes: Mapping[str, int | None]) -> None:
        """Record a write in progress: new versions of documents, or None for removals."""
        with self._lock:
            after = {**self.states[-1], **{name: v for name, v in changes.items() if v is not None}}
            for name, version in changes.items():
                if version is None:
                    after.pop(name, None)
            self.states.append(after)

    def acknowledge(self) -> None:
        """Record that everything sent is stored."""
        with self._lock:
            self.acknowledged = len(self.states) - 1

    def refuse(self) -> None:
        """Record that the server refused the last write, which changed nothing."""
        with self._lock:
            del self.states[self.acknowledged + 1 :]

    def possible(self, since: int) -> Sequence[State]:
        """Return the states that a read may see if `since` writes were acknowledged at its start."""
        with self._lock:
            return self.states[since:]

    def settle(self, found: State) -> None:
        """Make the state found after a restart final. It decides the unanswered writes."""
        with self._lock:
            self.states, self.acknowledged = [dict(found)], 0


@dataclass
class Verdict:
    """Errors by kind, with examples."""

    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    reads: int = 0

    def note(self, kind: str, what: str) -> None:
        """Count one error."""
        self.wrong[kind] += 1
        if self.wrong[kind] <= 5:
            self.examples.append(f"{kind}: {what}")


def sort_out(documents: Iterable[Mapping[str, Any]], verdict: Verdict, view: str) -> dict[str, dict[str, int]]:
    """Group the documents of a view by writer and id. Documents that differ from the sent ones are noted as errors."""
    found: dict[str, dict[str, int]] = {}
    for document in documents:
        name, metadata = document["id"], document["metadata"]
        version = metadata.get("version")
        if not isinstance(version, int) or dict(document) != body(name, version, str(metadata.get("writer"))):
            verdict.note("torn", f"{view}: {dict(document)}")
            continue
        held = found.setdefault(metadata["writer"], {})
        if name in held:
            verdict.note("phantom", f"{view}: {name} twice")
        held[name] = version
    return found


def judge(writes: Writes, found: State, since: int, verdict: Verdict, view: str) -> None:
    """Check that `found` is a state that may be seen of a writer, and note the errors."""
    possible = writes.possible(since)
    verdict.reads += 1
    if any(found == state for state in possible):
        return
    explained = False
    for name in found.keys() | {name for state in possible for name in state}:
        allowed = {state.get(name) for state in possible}
        seen = found.get(name)
        if seen in allowed:
            continue
        explained = True
        kind = kind_of(seen, allowed, writes.versions)
        verdict.note(kind, f"{view}: {writes.name}/{name} is {seen}, may be {sorted(map(str, allowed))}")
    if not explained:
        verdict.note("in part", f"{view}: {writes.name}: {dict(found)} is no state of {len(possible)}")


def kind_of(seen: int | None, allowed: Set[int | None], versions: int) -> str:
    """Return the kind of error if a version that is not allowed is seen. None means no document."""
    if seen is not None and seen > versions:
        return "phantom"
    return "back" if allowed == {None} else "lost"


@dataclass
class Outcome:
    """The result of one trial."""

    bounds: Sequence[Bound]
    details: dict[str, Any] = field(default_factory=dict)
    """Further figures to store, as JSON."""


def nothing_wrong(verdict: Verdict) -> list[Bound]:
    """Return a bound of 0 for each kind of error."""
    kinds = [*KINDS, *sorted(verdict.wrong.keys() - set(KINDS))]
    return [Bound(kind, verdict.wrong[kind], 0) for kind in kinds]


Trial = Callable[[Path, int], Outcome]
"""A function of an empty folder and a number of repetitions, seconds or operations. Each trial states its unit."""
