"""Reading vectors from a source into the start of an index: in memory or, if they are many, in a file."""

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
"""Maximum vectors that are read into memory. More are copied to a file."""


class Source(Protocol):
    """The source of truth about one corpus. Its methods may be called from any thread."""

    def vectors(self, after: int) -> Iterator[tuple[Keys, Floats]]:
        """Yield keys and vectors beyond the key `after`, in blocks, in order of keys."""

    def keys(self) -> Keys:
        """Return the keys of all vectors."""

    def tombstones(self, upto: int) -> Keys:
        """Return the sorted keys up to `upto` that were removed and not buried."""

    def bury(self, keys: Keys) -> None:
        """Forget these tombstones, because no index on disk contains their keys any more."""

    def last_key(self) -> int:
        """Return the greatest key ever assigned."""

    def count(self) -> int:
        """Return the number of vectors."""


@dataclass(frozen=True)
class Read:
    """Vectors read for exact search: `main` in the files of `folder`, or the `tail` in memory."""

    main: Main
    tail: ExactIndex
    last: int = 0
    """The last key that was read."""
    folder: Path | None = None
    """The folder of the files, which has no manifest until they serve."""
    manifest: dict[str, Any] = field(default_factory=dict)

    def discard(self) -> None:
        """Remove the files. If they serve by now, they have been renamed and stay."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def read(folder: Path, dim: int, blocks: Iterable[tuple[Keys, Floats]]) -> Read:
    """Read (n,) keys and (n, D) vectors in order of keys.

    More than `ROOM` are written to the new `folder` as they arrive.
    """
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
