"""Where a bundle is written: a folder that it replaces as a whole, and only if that was a bundle, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models import draft
from models.bundle import MANIFEST, BundleError, files_of, read_manifest


@contextmanager
def writing(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place when the block ends well, and vanishes when it doesn't.

    Whoever opens `folder` never sees a part of a bundle (`models.draft` has what a crash leaves).

    Raises:
        BundleError: `folder` holds something that no bundle holds; it is left alone.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft.restore(folder)
    refuse_foreign(folder)
    with draft.replacing(folder) as written:
        yield written


def refuse_foreign(folder: Path) -> None:
    """Only what a manifest lists may be replaced, for replacing deletes it.

    Raises:
        BundleError: `folder` holds something else, or is a link to a promoted bundle; it is left alone. Or it is
            called by where it is, not by its name.
    """
    if folder.name in ("", ".."):
        raise BundleError(f"{folder}: is replaced as a whole: call it by its name, from the folder above")
    if folder.is_symlink():
        raise BundleError(f"{folder}: a link to {folder.readlink()}; promote a bundle, or roll back, to change it")
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        foreign = sorted(files_of(folder) - set(read_manifest(folder / MANIFEST).files))
    except BundleError:
        raise BundleError(f"{folder}: exists and is not a bundle; it is left alone") from None
    if foreign:
        raise BundleError(f"{folder / foreign[0]}: not part of the bundle there, which is therefore left alone")
