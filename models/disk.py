"""Bytes that stay where they were written, and what to say where they can't be."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

EXHAUSTED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""The disk gave out: no other path, and no other argument, would have been better."""
AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Of Linux's renameat2(2)."""
UNABLE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}
"""A kernel or a file system that can't exchange two names."""
LFS = "a Git LFS pointer, not the file itself: fetch the file with `git lfs pull`"


def fsync(path: Path) -> None:
    """What `path` holds, a file's bytes or a folder's names, survives power loss from here on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make it, and those above it that are not there; they survive power loss from here on.

    Raises:
        OSError: it can't be made.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        fsync(made.parent)


def size(path: str | Path) -> int:
    """Bytes of a file, or of all files in a folder and below it; 0 of what is not there, or goes meanwhile.

    Raises:
        OSError: it can't be looked at.
    """
    with suppress(FileNotFoundError):
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            return found.st_size
        with os.scandir(path) as inside:
            return sum(size(one.path) for one in inside)
    return 0


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A path beside `file` to write to; what is there when the block ends well takes the place of `file`, or of the
    file that it links to.

    A reader, also one after a kill or power loss at any moment, finds the old file or the new, never a part. Each of
    several writers has a path of its own; what a killed one left is swept by the next.

    Raises:
        OSError: it can't be written; names `file`.
    """
    with naming(file):
        file = Path(os.path.realpath(file))
        _sweep(file)
        beside, descriptor = _part(file)
        try:
            yield beside
            fsync(beside)
            beside.replace(file)
            fsync(file.parent)
        finally:
            beside.unlink(missing_ok=True)
            os.close(descriptor)


def write_whole(file: Path, text: str) -> None:
    """Replaces `file` so that a reader finds the old text or the new, never a part.

    Raises:
        OSError: it can't be written; names `file`.
    """
    with replacing(file) as beside:
        beside.write_text(text, encoding="utf-8")


def _part(file: Path) -> tuple[Path, int]:
    """A new path beside `file`, and the descriptor that keeps `_sweep` from it."""
    while True:
        beside = file.with_name(f".{uuid4().hex[:8]}.{file.name}.part")
        descriptor = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if beside.exists():  # else it was swept before it was held
            return beside, descriptor
        os.close(descriptor)


def _sweep(file: Path) -> None:
    """Remove what writers left who are gone: nobody holds it any more. What can't be removed is in nobody's way."""
    for left in file.parent.glob(f".*.{glob.escape(file.name)}.part"):
        with suppress(OSError), held(left):
            left.unlink()


@contextmanager
def held(path: Path) -> Iterator[None]:
    """An exclusive lock on a file or folder that its process cannot outlive; BlockingIOError if another one has it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def exchanged(one: Path, other: Path) -> bool:
    """Swap what two names lead to, in one step; False, and nothing is changed, where the system can't.

    Raises:
        OSError: they can't be swapped; names `other`.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    swap = getattr(libc, "renameat2", None)
    if swap is None:
        return False
    if swap(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    if (number := ctypes.get_errno()) not in UNABLE:
        raise OSError(number, os.strerror(number), str(other))
    return False


def lfs_pointer(file: Path) -> bool:
    """Tell whether Git LFS has left a pointer in the place of the file, as a clone without LFS does."""
    with file.open("rb") as stream:
        return stream.read(42) == b"version https://git-lfs.github.com/spec/v1"


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """An `OSError` of the block names `file`: that of a full disk comes without a name."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(file), None
        raise


def verdict(error: OSError) -> tuple[str, int]:
    """How a command ends that `error` stops: a line that names the file, and its exit code.

    The code is 1 if the disk gave out, 2 if the path is not one to read or write: the user's to mend.
    """
    line = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return line, 1 if error.errno in EXHAUSTED else 2
