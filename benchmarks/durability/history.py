"""What a writer was told is stored, what it sent without an answer, and what may therefore be found."""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

State = Mapping[str, int]
"""Documents by id, each with its version."""
_WORDS = ("river", "stone", "paper", "music", "winter", "garden", "engine", "mirror", "harbour", "candle", "forest")


def text(document: str, version: int) -> str:
    """What the version of a document says: words that tell it from every other."""
    drawn = (zlib.crc32(f"{document} {version} {i}".encode()) for i in range(6))
    return f"{document} v{version} " + " ".join(_WORDS[number % len(_WORDS)] for number in drawn)


def body(document: str, version: int, writer: str) -> dict[str, Any]:
    """The document as it is uploaded."""
    return {
        "id": document,
        "text": text(document, version),
        "metadata": {"writer": writer, "version": version, "odd": bool(version % 2)},
    }


@dataclass
class Writes:
    """Those of one writer, one after another: a write is sent when the one before it was answered.

    A read that began when `acknowledged` was m may see the state after m writes or after any later one that was sent
    before it ended; of a write it sees all or nothing. After a restart the same holds, and what it finds is settled.
    """

    name: str
    states: list[State] = field(default_factory=lambda: [{}])
    """After none, one, two … of the writes sent."""
    acknowledged: int = 0
    versions: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_version(self) -> int:
        """Greater than all before."""
        self.versions += 1
        return self.versions

    def send(self, changes: Mapping[str, int | None]) -> None:
        """A write is on its way: new versions of documents, or None where they are removed."""
        with self._lock:
            after = {**self.states[-1], **{name: v for name, v in changes.items() if v is not None}}
            for name, version in changes.items():
                if version is None:
                    after.pop(name, None)
            self.states.append(after)

    def acknowledge(self) -> None:
        """All that was sent is stored."""
        with self._lock:
            self.acknowledged = len(self.states) - 1

    def refuse(self) -> None:
        """The last that was sent changed nothing, says the server."""
        with self._lock:
            del self.states[self.acknowledged + 1 :]

    def possible(self, since: int) -> Sequence[State]:
        """What a read that began when `since` writes were acknowledged may see."""
        with self._lock:
            return self.states[since:]

    def settle(self, found: State) -> None:
        """After a restart: what was found is what is stored, the writes without an answer are decided."""
        with self._lock:
            self.states, self.acknowledged = [dict(found)], 0


@dataclass
class Verdict:
    """What was found wrong, by kind, and examples of it."""

    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    reads: int = 0

    def note(self, kind: str, what: str) -> None:
        """One more."""
        self.wrong[kind] += 1
        if self.wrong[kind] <= 5:
            self.examples.append(f"{kind}: {what}")


KINDS = ("lost", "back", "phantom", "in part", "torn")
"""Acknowledged and not there · deleted and there · never sent · half of a write · text of another version."""


def sort_out(documents: Iterable[Mapping[str, Any]], verdict: Verdict, view: str) -> dict[str, dict[str, int]]:
    """The documents that a view gave, by writer and id; what is not what was sent under that id is noted."""
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
    """Whether `found` is what may be seen of a writer; what is not is noted."""
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
    """What it is called that a version is there, or None is, of the first `versions`, that is none of those allowed."""
    if seen is not None and seen > versions:
        return "phantom"
    return "back" if allowed == {None} else "lost"
