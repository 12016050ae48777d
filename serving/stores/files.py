"""The files of corpora as wholes: who holds their folder, what lies beside one, how one takes the place of another."""

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
"""What SQLite keeps beside a file while it is open, or was left open."""


def hold(folder: Path) -> int:
    """Two writers would not see each other's documents: their indexes are in memory."""
    held = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
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
    for beside in _with_beside(path)[1:]:
        beside.unlink(missing_ok=True)


def _with_beside(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in ("", *_BESIDE)]


def make(path: Path, corpus: Corpus, synchronous: str, shared: Shared | None = None) -> CorpusFile:
    """The file of a new corpus; it gets its name when the corpus is committed and the file in one piece.

    What fails leaves nothing, and what is killed nothing that `sweep` does not remove.
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
    """Remove what killed creations left."""
    for left in folder.glob(f".*{SUFFIX}.part*"):
        left.unlink()


def keep(path: Path) -> None:
    """Give a damaged file, with what lies beside it, a second name, that of no corpus: its own is for another."""
    names = (path.with_name(f"{path.name}.damaged{number}") for number in chain([""], count(2)))
    kept = next(name for name in names if not any(one.exists() for one in _with_beside(name)))
    for file, second in zip(_with_beside(path), _with_beside(kept), strict=True):
        if file.exists():
            os.link(file, second)
    fsync(path.parent)
    log.warning("%s is damaged: kept as %s", path, kept.name)


def prepare(name: str, file: Path, bounds: Bounds = BOUNDS, stop: Stop = never) -> None:
    """Make `file` a whole corpus of this name and of today's format, in one piece.

    Raises:
        StoreError: it is none, holds more than `bounds` allow, or was not looked through because of `stop`.
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
    """All of a whole corpus; it is in one piece again when the last of them is taken."""
    with closing(CorpusFile(file, stop=stop)) as opened:
        yield from opened.vectors(None, 0)


def carry(old: Path, new: Path) -> None:
    """The uploads that wait for the corpus in `old`, which nobody has open, wait for that in `new`."""
    waiting: list[str] = []
    with suppress(Damaged), closing(CorpusFile(old)) as before:
        waiting = before.accepted()
    with closing(CorpusFile(new)) as after:
        for job in waiting:
            after.accept(job)
        with after.set_aside():
            fsync(new)


def adopt(file: Path, to: Path) -> None:
    """See `move`."""
    reach("store.before-adopt")
    move(file, to)
    reach("store.after-adopt")


def move(file: Path, to: Path) -> None:
    """In one step, while nobody has `to` open."""
    unlink_beside(to)
    file.replace(to)
    fsync(to.parent)
