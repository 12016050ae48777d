"""Vectors of the truth on their way into an index: in memory or, where they are many, in a file."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from serving.indexes import saved
from serving.indexes.exact import ExactIndex
from serving.indexes.main import Main, Tuning
from serving.ports import Floats, Keys

ROOM = 250_000
"""Vectors that are read into memory; more are copied to a file."""


class Source(Protocol):
    """The truth about one corpus. Called from any thread."""

    def vectors(self, after: int) -> Iterator[tuple[Keys, Floats]]:
        """Those of keys beyond `after`, in blocks in order of keys."""

    def keys(self) -> Keys:
        """Of all vectors that there are."""

    def tombstones(self, upto: int) -> Keys:
        """Sorted keys up to `upto` that are no more and were not buried."""

    def bury(self, keys: Keys) -> None:
        """No index on disk has them any more."""

    def last_key(self) -> int:
        """The greatest ever given out."""

    def count(self) -> int:
        """Vectors that there are."""


@dataclass(frozen=True)
class Read:
    """What was read, to be searched exactly: `main` in the files of `folder`, or the `tail` in memory."""

    main: Main
    tail: ExactIndex
    last: int = 0
    """Key that was read."""
    folder: Path | None = None
    """Without its manifest, until it serves."""
    manifest: dict[str, Any] = field(default_factory=dict)

    def discard(self) -> None:
        """Remove what is in files, unless it serves by now, under another name."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def read(folder: Path, dim: int, blocks: Iterable[tuple[Keys, Floats]]) -> Read:
    """(n,) keys and (n, D) vectors in order of keys; more than `ROOM` go to the new `folder`, as they come."""
    tail, blocks = ExactIndex(dim), iter(blocks)
    for keys, vectors in blocks:
        tail.add(keys, vectors)
        if len(tail) >= ROOM:
            return _filed(folder, dim, chain([(tail.held.keys, tail.held.vectors)], blocks))
    nothing = Main(np.empty(0, np.int64), np.empty((0, dim), np.float32), None, Tuning(0.0))
    return Read(nothing, tail, last=int(tail.held.keys[-1]) if len(tail) else 0)


def _filed(folder: Path, dim: int, blocks: Iterator[tuple[Keys, Floats]]) -> Read:
    try:
        keys, vectors = saved.write_vectors(folder, dim, blocks)
        main = Main(keys, vectors, None, Tuning(0.0), reason="the index is not built yet")
        return Read(main, ExactIndex(dim), int(keys[-1]), folder, saved.describe(folder, main))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
