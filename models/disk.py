"""Bytes that stay where they were written, and what to say where they can't be."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXHAUSTED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""The disk gave out: no other path, and no other argument, would have been better."""


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


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A path beside `file` to write to; what is there when the block ends well takes the place of `file`.

    A reader, also one after a kill or power loss at any moment, finds the old file or the new, never a part.

    Raises:
        OSError: it can't be written; names `file`.
    """
    beside = file.with_name(file.name + ".part")
    with naming(file):
        try:
            yield beside
            fsync(beside)
            beside.replace(file)
            fsync(file.parent)
        finally:
            beside.unlink(missing_ok=True)


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
