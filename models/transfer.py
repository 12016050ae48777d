"""Bundles and adapters to a remote and back, every hash checked at both ends."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path

from models import adapter, bundle, destination, draft
from models.adapter import Adapter
from models.bundle import MANIFEST, Bundle, BundleError, Manifest
from models.disk import naming
from models.errors import Refused
from models.remotes.base import Remote, RemoteError

DOWNLOADS = ".cache"
"""The hub's client keeps its notes there."""


class TransferError(Refused):
    """Something else is where the bundle is to go; the message says what, and what to do."""


Package = Bundle | Adapter


def opened(folder: Path) -> Package:
    """The bundle or the adapter in a folder, every hash verified.

    Raises:
        BundleError, AdapterError: it is neither, or a damaged one.
    """
    return adapter.load(folder) if adapter.is_adapter(folder) else bundle.load(folder)


def publish(source: Package, remote: Remote, *, replace: bool = False) -> int:
    """Store a verified package at `remote`, and compare what is there afterwards with it; the number of files sent.

    Complete files are skipped, and a partial upload is continued. Where a remote takes one file after another, an old
    manifest is removed first and the new one is written last, so that nobody pulls a part.

    Raises:
        TransferError: another bundle is there and `replace` was not given, or files that are of none.
        RemoteError: the remote fails, or holds other bytes in the end.
    """
    if source.manifest is None:
        raise TransferError(f"{source.folder}: has no {adapter.MANIFEST}, so what arrives could not be checked")
    main = adapter.MANIFEST if isinstance(source, Adapter) else MANIFEST
    paths = {*source.manifest.files, main}
    there = remote.files()
    same = {path for path in paths & there if remote.holds(path, source.folder / path)}
    others = there - same
    if foreign := others - paths - _listed(remote):
        raise TransferError(f"{remote}: holds {min(foreign)}, which is of no bundle and left alone; choose a new place")
    if main not in same and not replace:
        cut = {path for path in others & paths if remote.begins(path, source.folder / path)}
        if others - cut:
            raise TransferError(
                f"{remote}: holds another {min(others - cut)}; --replace puts {source.folder} in the place of that one"
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
            raise RemoteError(f"{remote}: {path}: arrived damaged (not the bytes of {source.folder}); publish it again")
    return len(sent)


def pull(remote: Remote, folder: Path, *, replace: bool = False) -> tuple[Package, int]:
    """The package at `remote` as `folder`, whole and verified, or nothing; with the number of files fetched.

    Raises:
        BundleError, AdapterError: what is there is neither, or `folder` holds something that is neither.
        TransferError: another package is in `folder` and `replace` was not given.
        RemoteError: the remote fails, or a file has not the hash that the manifest says.
        OSError: `folder` can't be written; names it.
    """
    found = _manifest(remote)
    if found is None:
        raise BundleError(
            f"{remote}: has no {MANIFEST} and no {adapter.MANIFEST}; is this the place of a bundle or an adapter, "
            "and may you read it?"
        )
    name, content, manifest = found
    if present := _present(folder, name, content):
        return present, 0
    if folder.is_dir() and any(folder.iterdir()) and not replace:
        _refuse_foreign(folder)
        raise TransferError(f"{folder}: holds another bundle, or a damaged one; --replace puts this one in its place")
    with naming(folder), _writing(folder) as written:
        (written / name).write_bytes(content)
        _fetch(remote, manifest, written)
        opened(written)
    return opened(folder), len(manifest.files) + 1


def _writing(folder: Path) -> AbstractContextManager[Path]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft.restore(folder)
    _refuse_foreign(folder)
    return draft.replacing(folder)


def _refuse_foreign(folder: Path) -> None:
    """An adapter may be replaced as a bundle may."""
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
                f"{remote}: {path}: damaged there or on its way (its SHA-256 is not the manifest's); nothing was kept"
            )
    shutil.rmtree(draft / DOWNLOADS, ignore_errors=True)


def _present(folder: Path, name: str, content: bytes) -> Package | None:
    """The package in `folder` if it is this very one, and whole."""
    try:
        found = opened(folder)
    except Refused:
        return None
    file = found.folder / name
    return found if file.is_file() and file.read_bytes() == content else None


def _manifest(remote: Remote) -> tuple[str, bytes, Manifest] | None:
    """The name of the manifest at `remote`, its bytes and what they say; None if there is none."""
    for name, required in ((MANIFEST, bundle.REQUIRED), (adapter.MANIFEST, adapter.REQUIRED)):
        if (content := remote.read(name)) is not None:
            return name, content, bundle.parse_manifest(content, f"{remote}: {name}", required=required)
    return None


def _listed(remote: Remote) -> set[str]:
    """What the manifest at `remote` lists, which alone may be replaced; nothing if it is that of something else."""
    try:
        found = _manifest(remote)
    except BundleError:
        return set()
    return set(found[2].files) if found else set()
