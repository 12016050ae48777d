"""A folder that takes another one's place in one step, whole or not at all."""

from __future__ import annotations

import errno
import glob
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from models.disk import exchanged, fsync, held

TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
"""Another writer was the first to a name that was free."""


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A draft beside `folder` that takes its place when the block ends well, and vanishes when it doesn't.

    Whoever opens `folder`, at any moment and after a kill at any, finds the old one or the new. A file system that
    can't exchange two names has neither between two renames; a crash there leaves the old one whole under a hidden
    name, from which `restore` brings it back. Of several writers at once the last one's stays. A killed writer's draft
    is swept by the next one.
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
    """Bring back what a crash between the two renames left; or only the removal of the old one was cut short."""
    previous = _previous(folder)
    if previous.exists() and not folder.exists():
        previous.rename(folder)
    shutil.rmtree(previous, ignore_errors=True)


def _new(folder: Path, holding: ExitStack) -> Path:
    """A new draft beside `folder`, which no sweep takes for a killed writer's until `holding` ends."""
    while True:
        draft = Path(tempfile.mkdtemp(prefix=_prefix(folder), dir=folder.parent))
        with suppress(BlockingIOError, FileNotFoundError):  # a sweep holds it already, or had it
            holding.enter_context(held(draft))
            if draft.exists():
                return draft


def _swap(draft: Path, folder: Path) -> None:
    """The old one, if there is one, is `draft` afterwards, or gone."""
    previous = _previous(folder)
    if not _took_free_name(draft, folder) and not exchanged(draft, folder):
        folder.rename(previous)
        draft.rename(folder)
    fsync(folder.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _took_free_name(draft: Path, folder: Path) -> bool:
    """False if there is something by that name, though it may have come this moment."""
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
    """Remove drafts whose writers are gone: nobody holds their lock any more."""
    for draft in folder.parent.glob(f"{glob.escape(_prefix(folder))}*"):
        with suppress(OSError), held(draft):
            shutil.rmtree(draft, ignore_errors=True)
