"""Operations on whole corpus files with their side files, and the lock of their folder."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import chain, count
from pathlib import Path

from models.disk import fsync
from serving.bounds import BOUNDS, Bounds
from serving.errors import Damaged, ServiceError
from serving.failpoints import reach
from serving.ports import Blocks, Corpus, Stop, StoreError, never
from serving.stores.corpus_file import CorpusFile
from serving.stores.failures import naming
from serving.stores.shared import Shared

log = logging.getLogger(__name__)
SUFFIX = ".sqlite"
_BESIDE = ("-journal", "-wal", "-shm")
"""Suffixes of SQLite's side files. They exist while the file is open, and after a crash."""


def hold(folder: Path) -> int:
    """Lock `folder` for this process, and return the lock's file descriptor.

    Two processes would not find each other's documents, because indexes are in memory.

    Raises:
        StoreError: another process holds the lock.
    """
    held = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise StoreError(f"{folder}: in use by another server or command") from None
    return held


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn a `ServiceError`, meant for callers, into a `StoreError` that says why the file can't be used."""
    try:
        yield
    except ServiceError as error:
        raise StoreError(f"{path}: {error.__cause__ or error}") from error


def remove(path: Path) -> None:
    """Delete the file and its side files."""
    path.unlink(missing_ok=True)
    unlink_beside(path)
    fsync(path.parent)


def unlink_beside(path: Path) -> None:
    """Delete the side files. SQLite would replay a leftover log into a later file of the same name."""
    for beside in _with_beside(path)[1:]:
        beside.unlink(missing_ok=True)


def _with_beside(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in ("", *_BESIDE)]


def make(path: Path, corpus: Corpus, synchronous: str, shared: Shared | None = None) -> CorpusFile:
    """Create the file of a new corpus. The file gets its final name when the corpus is committed.

    After a failure nothing remains. `sweep` removes the leftovers of killed processes.
    """
    part = path.with_name(f".{path.name}.part")
    with naming(path):
        try:
            with closing(CorpusFile(part, synchronous, new=True)) as made:
                made.create(corpus)
                with made.set_aside():
                    fsync(part)
            reach("store.before-create")
            move(part, path)
            reach("store.after-create")
            return CorpusFile(path, synchronous, shared=shared)
        except BaseException:
            remove(part)
            remove(path)
            raise


def sweep(folder: Path) -> None:
    """Remove the leftovers of killed creations."""
    for left in folder.glob(f".*{SUFFIX}.part*"):
        left.unlink()


def keep(path: Path) -> None:
    """Link a damaged file and its side files to a second name that no corpus has, to free the original name."""
    names = (path.with_name(f"{path.name}.damaged{number}") for number in chain([""], count(2)))
    kept = next(name for name in names if not any(one.exists() for one in _with_beside(name)))
    for file, second in zip(_with_beside(path), _with_beside(kept), strict=True):
        if file.exists():
            os.link(file, second)
    fsync(path.parent)
    log.warning("%s is damaged: kept as %s", path, kept.name)


def prepare(name: str, file: Path, bounds: Bounds = BOUNDS, stop: Stop = never) -> None:
    """Check the corpus in `file`, migrate it to the current format, rename it to `name`, and empty its log.

    Raises:
        StoreError: `file` is no corpus, exceeds `bounds`, or `stop` interrupted the check.
    """
    if not file.is_file():
        raise StoreError(f"{file}: there is no such file")
    with refusing(file):
        opened = CorpusFile(file, foreign=bounds, stop=stop)
        try:
            if wrong := opened.verify():
                raise StoreError(f"{file}: damaged: {wrong[0]}")
            opened.rename(name)
            with opened.set_aside():
                fsync(file)
        finally:
            opened.close()


def vectors(file: Path, stop: Stop = never) -> Blocks:
    """Yield all vectors of the corpus in `file`. After the last block, its log is empty again."""
    with closing(CorpusFile(file, stop=stop)) as opened:
        yield from opened.vectors(None, 0)


def carry(old: Path, new: Path) -> None:
    """Copy the records of pending uploads from the corpus in `old` to the corpus in `new`. `old` must be closed."""
    waiting: list[str] = []
    with suppress(Damaged), closing(CorpusFile(old)) as before:
        waiting = before.accepted()
    with closing(CorpusFile(new)) as after:
        for job in waiting:
            after.accept(job)
        with after.set_aside():
            fsync(new)


def adopt(file: Path, to: Path) -> None:
    reach("store.before-adopt")
    move(file, to)
    reach("store.after-adopt")


def move(file: Path, to: Path) -> None:
    """Rename `file` to `to` in one step. `to` must not be open."""
    unlink_beside(to)
    file.replace(to)
    fsync(to.parent)
