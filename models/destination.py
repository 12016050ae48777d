"""Where a bundle is written: a folder that it replaces as a whole, and only if that was a bundle, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models import bundle, card, draft
from models.bundle import MANIFEST, Bundle, BundleError, files_of, read_manifest
from models.origin import Origin
from models.runtimes import cache, choice
from models.runtimes.base import Options
from models.runtimes.choice import Choice


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


def seal(
    written: Path,
    facts: Mapping[str, Any],
    origin: Origin,
    citations: Sequence[str] = (),
    *,
    measured: Options | None = None,
    chosen: Callable[[Choice], object] = lambda _: None,
) -> None:
    """Finish a draft whose other files are there: compare the runtimes where `measured` says how, then write the card
    and the manifest.

    Raises:
        BundleError: the draft is no bundle, so it must not take the place of one.
    """
    manifest = bundle.write_manifest(written, **facts)
    if measured:
        fastest = choice.choose(Bundle(written, manifest), measured)
        chosen(fastest)
        if table := fastest.table():  # to be read: a host that serves the bundle decides by its own
            said = {"host": cache.host(measured), "measured": table}
            text = json.dumps(said, ensure_ascii=False, indent=1, allow_nan=False)
            (written / bundle.ENGINES).write_text(text + "\n", encoding="utf-8")
    (written / bundle.CARD).write_text(card.text(manifest, origin, citations), encoding="utf-8")
    bundle.write_manifest(written, **facts)
    bundle.load(written)


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
