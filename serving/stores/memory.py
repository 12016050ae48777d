"""Corpora that vanish with the process, for tests and for experiments."""

from __future__ import annotations

import shutil
import weakref
from pathlib import Path
from tempfile import mkdtemp

from serving.stores.sqlite import SqliteStore


class MemoryStore(SqliteStore):
    """A `SqliteStore` on a temporary folder, which never waits for the disk."""

    def __init__(self, folder: Path | None = None) -> None:  # noqa: ARG002 - every store is opened on a folder
        temporary = mkdtemp(prefix="corpora-")
        self._removed = weakref.finalize(self, shutil.rmtree, temporary)
        super().__init__(Path(temporary), synchronous="OFF")

    def close(self) -> None:
        super().close()
        self._removed()
