"""The files of corpora as wholes: who holds their folder, what lies beside one, how one takes the place of another."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from models.disk import fsync
from serving.errors import ServiceError
from serving.failpoints import reach
from serving.ports import Blocks, StoreError
from serving.stores.corpus_file import CorpusFile

_BESIDE = ("-journal", "-wal", "-shm")
"""What SQLite keeps beside a file while it is open, or was left open."""


def hold(folder: Path) -> int:
    """Two writers would not see each other's documents: their indexes are in memory."""
    held = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise StoreError(f"{folder}: in use by another server or command") from None
    return held


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """What would be an answer to a caller is here why the file can't be used."""
    try:
        yield
    except ServiceError as error:
        raise StoreError(f"{path}: {error.__cause__ or error}") from error


def remove(path: Path) -> None:
    """With what lies beside it."""
    path.unlink(missing_ok=True)
    unlink_beside(path)
    fsync(path.parent)


def unlink_beside(path: Path) -> None:
    """A log left beside a later file of the same name would be replayed into it."""
    for suffix in _BESIDE:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def prepare(name: str, file: Path) -> None:
    """Make `file` a whole corpus of this name and of today's format, in one piece.

    Raises:
        StoreError: it is none.
    """
    if not file.is_file():
        raise StoreError(f"{file}: there is no such file")
    with refusing(file):
        opened = CorpusFile(file)
        try:
            if opened.corpus() is None:
                raise StoreError(f"{file}: holds no corpus")
            if wrong := opened.verify():
                raise StoreError(f"{file}: damaged: {wrong[0]}")
            opened.rename(name)
            with opened.set_aside():
                fsync(file)
        finally:
            opened.close()


def vectors(file: Path) -> Blocks:
    """All of a whole corpus; it is in one piece again when the last of them is taken."""
    with closing(CorpusFile(file)) as opened:
        yield from opened.vectors(None, 0)


def move(file: Path, to: Path) -> None:
    """In one step, while nobody has `to` open."""
    reach("store.before-adopt")
    unlink_beside(to)
    file.replace(to)
    fsync(to.parent)
    reach("store.after-adopt")
