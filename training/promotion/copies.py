"""Copies of promoted bundles, so that a repeated training does not change the served bundle."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path

from models.bundle import bundle
from models.bundle.bundle import Bundle, BundleError, Manifest
from models.export import destination

COMPUTED = {"format_version", "files", "fingerprint"}


def copy(
    source: Bundle,
    folder: Path,
    *,
    dropped: Collection[str] = (),
    added: Mapping[str, bytes],
    scores: Mapping[str, float] | None = None,
) -> Bundle:
    """Write `source` as the new bundle `folder`, without the files `dropped` and with those `added`.

    Unchanged files are hard links if possible. `scores` replace the manifest's scores; the default is the source's.

    Raises:
        BundleError: the source has changed since it was loaded.
        OSError: the copy can't be written.
    """
    kept = [path for path in source.manifest.files if path not in dropped and path not in added]
    with destination.writing(folder) as draft:
        for path in kept:
            _link(source.folder / path, draft / path)
        for path, content in added.items():
            (draft / path).write_bytes(content)
        facts = _facts(source.manifest) | ({} if scores is None else {"scores": dict(scores)})
        written = bundle.write_manifest(draft, **facts)
        for path in kept:
            if written.files[path] != source.manifest.files[path]:
                raise BundleError(f"{source.folder / path}: altered while it was promoted")
        if written.fingerprint != source.manifest.fingerprint:
            raise BundleError(f"{source.folder}: the copy has another fingerprint")
    return bundle.load(folder)


def _facts(manifest: Manifest) -> dict[str, object]:
    return {field.name: getattr(manifest, field.name) for field in fields(manifest) if field.name not in COMPUTED}


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise BundleError(f"{source}: gone while it was promoted") from None
    except OSError:  # The target is on another file system, or on one without hard links.
        shutil.copyfile(source, target)
