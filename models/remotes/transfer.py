"""Upload and download of bundles and adapters. All hashes are checked before and after a transfer."""

from __future__ import annotations

import shutil
from pathlib import Path

from models.bundle import adapter, bundle, disk
from models.bundle.adapter import Adapter
from models.bundle.bundle import MANIFEST, Bundle, BundleError, Manifest
from models.bundle.disk import naming
from models.errors import Refused
from models.export import destination
from models.remotes.base import Remote, RemoteError

DOWNLOADS = ".cache"
"""Folder in which the hub's client stores metadata."""


Package = Bundle | Adapter


def opened(folder: Path) -> Package:
    """Open the bundle or the adapter in a folder, and verify every hash.

    Raises:
        BundleError, AdapterError: the folder has neither a bundle nor an adapter, or is damaged.
    """
    return adapter.load(folder) if adapter.is_adapter(folder) else bundle.load(folder)


def publish(source: Package, remote: Remote, *, replace: bool = False) -> int:
    """Upload a verified package to `remote`, verify the result, and return the number of files sent.

    Files that are already complete on the remote are skipped, and an interrupted upload is continued. If the remote
    stores files one by one, the old manifest is removed before the upload, and the new manifest is uploaded last. An
    incomplete package therefore can't be pulled.

    Raises:
        Refused: the package is an adapter without adapter.json; the remote contains files that belong to no package; or
            the remote contains a different package, and `replace` is false.
        RemoteError: the remote fails, or its bytes are wrong after the upload.
    """
    if source.manifest is None:
        raise Refused(f"{source.folder}: has no {adapter.MANIFEST}, so the upload could not be verified")
    main = adapter.MANIFEST if isinstance(source, Adapter) else MANIFEST
    paths = {*source.manifest.files, main}
    there = remote.files()
    same = {path for path in paths & there if remote.holds(path, source.folder / path)}
    others = there - same
    if foreign := others - paths - _listed(remote):
        raise Refused(
            f"{remote}: contains {min(foreign)}, which is not part of a bundle, so it is not "
            "replaced; choose a new place"
        )
    if main not in same and not replace:
        cut = {path for path in others & paths if remote.begins(path, source.folder / path)}
        if others - cut:
            raise Refused(
                f"{remote}: contains another {min(others - cut)}; replace it with {source.folder} by --replace"
            )
    stale = others - paths
    if same == paths and not stale:
        return 0
    sent = [*sorted(paths - same - {main}), main]
    manifests = {MANIFEST, adapter.MANIFEST} & there
    remote.put(source.folder, sent, removed=[*sorted(others - manifests), *sorted(manifests)])
    arrived = remote.files()
    for path in sent:
        if path not in arrived or not remote.holds(path, source.folder / path):
            raise RemoteError(
                f"{remote}: {path}: was damaged during the upload (it differs from {source.folder}); publish it again"
            )
    return len(sent)


def pull(remote: Remote, folder: Path, *, replace: bool = False) -> tuple[Package, int]:
    """Download the package at `remote` to `folder` atomically, after verifying every hash.

    Return the package and the number of files downloaded. The number is 0 if `folder` already contains the same
    package.

    Raises:
        BundleError, AdapterError: the remote has neither a bundle nor an adapter, or `folder` has files that belong to
            neither.
        Refused: `folder` contains a different or damaged package, and `replace` is false.
        RemoteError: the remote fails, or the hash of a file differs from the manifest.
        OSError: `folder` can't be written; the message names `folder`.
    """
    found = _manifest(remote)
    if found is None:
        raise BundleError(
            f"{remote}: has no {MANIFEST} and no {adapter.MANIFEST}; check that this is the place of a "
            "bundle or an adapter, and that you have read access"
        )
    name, content, manifest = found
    if present := _present(folder, name, content):
        return present, 0
    if folder.is_dir() and any(folder.iterdir()) and not replace:
        _refuse_foreign(folder)
        raise Refused(f"{folder}: contains another bundle, or a damaged one; replace it by --replace")
    with naming(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        disk.restore_folder(folder)
        _refuse_foreign(folder)
        with disk.replacing_folder(folder) as written:
            (written / name).write_bytes(content)
            _fetch(remote, manifest, written)
            opened(written)
    return opened(folder), len(manifest.files) + 1


def _refuse_foreign(folder: Path) -> None:
    """Raise an error if a folder has files that belong to neither a bundle nor an adapter.

    Such files would be deleted when the folder is replaced.
    """
    if adapter.is_adapter(folder):
        adapter.refuse_foreign(folder)
    else:
        destination.refuse_foreign(folder)


def _fetch(remote: Remote, manifest: Manifest, draft: Path) -> None:
    for path, expected in manifest.files.items():
        (draft / path).parent.mkdir(parents=True, exist_ok=True)
        remote.fetch(path, draft)
        if bundle.sha256(draft / path) != expected:
            raise RemoteError(
                f"{remote}: {path}: damaged on the remote or during the download (its SHA-256 differs from the "
                "manifest); nothing was kept"
            )
    shutil.rmtree(draft / DOWNLOADS, ignore_errors=True)


def _present(folder: Path, name: str, content: bytes) -> Package | None:
    """Return the complete package in `folder` if its manifest, the file `name`, has the bytes `content`.

    Otherwise return None.
    """
    try:
        found = opened(folder)
    except Refused:
        return None
    file = found.folder / name
    return found if file.is_file() and file.read_bytes() == content else None


def _manifest(remote: Remote) -> tuple[str, bytes, Manifest] | None:
    """Return file name, bytes and parsed content of the manifest at `remote`, or None if there is no manifest."""
    for name, required in ((MANIFEST, bundle.REQUIRED), (adapter.MANIFEST, adapter.REQUIRED)):
        if (content := remote.read(name)) is not None:
            return name, content, bundle.parse_manifest(content, f"{remote}: {name}", required=required)
    return None


def _listed(remote: Remote) -> set[str]:
    """Return the names of the files that the manifest at `remote` lists. A new package may replace these files.

    The result is empty if the manifest is missing or invalid.
    """
    try:
        found = _manifest(remote)
    except BundleError:
        return set()
    return set(found[2].files) if found else set()
