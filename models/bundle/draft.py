"""Atomic replacement of folders."""

from __future__ import annotations

import errno
import glob
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from models.bundle.disk import exchanged, fsync, held

TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
"""Errors which mean that another writer was first to use the name."""


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield a draft beside `folder`. If the block succeeds, the draft replaces `folder`. Otherwise it is deleted.

    Readers of `folder` always see the old folder or the new one, even after a kill. Some file systems can't exchange
    two names. On these, `folder` does not exist for a moment between two renames. If the process crashes in this
    moment, the old folder still exists under a hidden name, and `restore` renames it back. If several writers run at
    the same time, the last one wins. The next writer deletes the drafts of killed writers.
    """
    _sweep(folder)
    with ExitStack() as holding:
        draft = _new(folder, holding)
        try:
            yield draft
            for path in (*draft.rglob("*"), draft):
                path.chmod(0o755 if path.is_dir() else 0o644)  # a server may run as another user
                fsync(path)
            _swap(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def restore(folder: Path) -> None:
    """Repair a crash: rename the old folder back if `folder` is missing, or complete the old folder's deletion."""
    previous = _previous(folder)
    if previous.exists() and not folder.exists():
        previous.rename(folder)
    shutil.rmtree(previous, ignore_errors=True)


def _new(folder: Path, holding: ExitStack) -> Path:
    """Create a draft beside `folder`, locked until `holding` ends so that no sweep deletes it."""
    while True:
        draft = Path(tempfile.mkdtemp(prefix=_prefix(folder), dir=folder.parent))
        with suppress(BlockingIOError, FileNotFoundError):  # a sweep has locked or deleted it
            holding.enter_context(held(draft))
            if draft.exists():
                return draft


def _swap(draft: Path, folder: Path) -> None:
    """Put the draft in place. The old folder, if any, becomes `draft` or is deleted."""
    previous = _previous(folder)
    if not _took_free_name(draft, folder) and not exchanged(draft, folder):
        folder.rename(previous)
        draft.rename(folder)
    fsync(folder.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _took_free_name(draft: Path, folder: Path) -> bool:
    """Rename the draft to `folder` if that name is free. Return False if it is taken, even by a simultaneous writer."""
    try:
        if not folder.exists():
            draft.rename(folder)
            return True
    except OSError as error:
        if error.errno not in TAKEN:
            raise
    return False


def _previous(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.previous-bundle")


def _prefix(folder: Path) -> str:
    return f".{folder.name}.draft-bundle-"


def _sweep(folder: Path) -> None:
    """Delete the drafts of killed writers, which no process locks."""
    for draft in folder.parent.glob(f"{glob.escape(_prefix(folder))}*"):
        with suppress(OSError), held(draft):
            shutil.rmtree(draft, ignore_errors=True)
