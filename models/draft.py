"""A folder that takes another one's place in one step, whole or not at all."""

from __future__ import annotations

import glob
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from models.disk import exchanged, fsync, held


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A draft beside `folder` that takes its place when the block ends well, and vanishes when it doesn't.

    Whoever opens `folder`, at any moment and after a kill at any, finds the old one or the new. A file system that
    can't exchange two names has neither between two renames; a crash there leaves the old one whole under a hidden
    name, from which `restore` brings it back. A killed writer's draft is swept by the next one.
    """
    _sweep(folder)
    draft = Path(tempfile.mkdtemp(prefix=_prefix(folder), dir=folder.parent))
    try:
        with held(draft):
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


def _swap(draft: Path, folder: Path) -> None:
    """The old one, if there is one, is `draft` afterwards, or gone."""
    previous = _previous(folder)
    if not folder.exists():
        draft.rename(folder)
    elif not exchanged(draft, folder):
        folder.rename(previous)
        draft.rename(folder)
    fsync(folder.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _previous(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.previous-bundle")


def _prefix(folder: Path) -> str:
    return f".{folder.name}.draft-bundle-"


def _sweep(folder: Path) -> None:
    """Remove drafts whose writers are gone: nobody holds their lock any more."""
    for draft in folder.parent.glob(f"{glob.escape(_prefix(folder))}*"):
        with suppress(OSError), held(draft):
            shutil.rmtree(draft, ignore_errors=True)
