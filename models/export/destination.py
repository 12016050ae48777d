"""The destination folder of an export.

The folder is replaced as a whole, but only if it contains nothing except a bundle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models.bundle import bundle, card, disk
from models.bundle.bundle import MANIFEST, Bundle, BundleError, files_of, read_manifest
from models.bundle.origin import Origin
from models.runtimes import choice
from models.runtimes.base import Options
from models.runtimes.choice import Choice


@contextmanager
def writing(folder: Path) -> Iterator[Path]:
    """Yield a new folder. If the `with` block succeeds, this new folder replaces `folder`, else it is deleted.

    Readers of `folder` never see an incomplete bundle (see `models.bundle.disk.replacing_folder` for crashes).

    Raises:
        BundleError: `folder` is a link, has content other than a bundle, or has a path that does not end in a name. In
            these cases nothing has changed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    disk.restore_folder(folder)
    refuse_foreign(folder)
    with disk.replacing_folder(folder) as written:
        yield written


def seal(
    written: Path,
    facts: Mapping[str, Any],
    origin: Origin,
    citations: Sequence[str] = (),
    *,
    measure_with: Options | None = None,
    on_choice: Callable[[Choice], object] = lambda _: None,
) -> None:
    """Add the model card and the manifest to the draft of a bundle in the folder `written`, and verify the bundle.

    With `measure_with`, the runtimes are first compared on this machine under these options. The measurements are added
    to the bundle, and `on_choice` is called with the chosen runtime.

    Raises:
        BundleError: the draft is not a valid bundle.
    """
    manifest = bundle.write_manifest(written, **facts)
    if measure_with:
        fastest = choice.choose(Bundle(written, manifest), measure_with)
        on_choice(fastest)
        # The measurements in the bundle are only for information. Each host that serves the bundle measures again.
        if table := fastest.table():
            said = {"host": choice.host(measure_with), "measured": table}
            text = json.dumps(said, ensure_ascii=False, indent=1, allow_nan=False)
            (written / bundle.ENGINES).write_text(text + "\n", encoding="utf-8")
    (written / bundle.CARD).write_text(card.text(manifest, origin, citations), encoding="utf-8")
    bundle.write_manifest(written, **facts)
    found = bundle.load(written)
    _ = found.int8_limit, found.matryoshka  # Servers read these settings, too.


def check_outside_bundles(path: Path) -> None:
    """Raise `BundleError` if `path` is inside a bundle, which could not be loaded with an additional file."""
    for parent in _above(path):
        if (parent / MANIFEST).exists():
            try:
                read_manifest(parent / MANIFEST)
            except BundleError:  # a file of another program with this name
                continue
            raise BundleError(f"{path}: is inside the bundle {parent}, which must contain only its own files")


def _above(path: Path) -> list[Path]:
    """Return the folders above `path`, nearest first. `path` itself may be a link, and is not resolved."""
    parent = path.absolute().parent.resolve()
    return [parent, *parent.parents]


def refuse_foreign(folder: Path) -> None:
    """Raise an error if a bundle can't be written to a folder.

    If the folder contains files that no manifest lists, it is not replaced, because these files would be deleted.

    Raises:
        BundleError: `folder` is a link, is not empty and not a bundle, contains files that its manifest does not list,
            is inside a bundle or in a folder that is not writable, or has a path that does not end in a name; nothing
            has changed.
    """
    if folder.name in ("", ".."):
        raise BundleError(f"{folder}: the folder would be replaced, so its path must end in its name")
    check_outside_bundles(folder)
    above = next(parent for parent in _above(folder) if parent.exists())
    if not above.is_dir():
        raise BundleError(f"{folder}: {above} is not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise BundleError(f"{folder}: {above} is not writable")
    if folder.is_symlink():
        raise BundleError(f"{folder}: is a link to {folder.readlink()}; promote a bundle or roll back to change it")
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        foreign = sorted(files_of(folder) - set(read_manifest(folder / MANIFEST).files))
    except BundleError:
        raise BundleError(f"{folder}: exists and is not a bundle, so it is not replaced") from None
    if foreign:
        raise BundleError(f"{folder / foreign[0]}: not a file of the bundle, so the folder is not replaced")
