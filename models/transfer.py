"""Transfer of bundles and adapters to a remote and back, with every hash checked at both ends."""

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
"""Folder in which the hub's client keeps its notes."""


class TransferError(Refused):
    """The destination has something else. The message says what, and what to do."""


Package = Bundle | Adapter


def opened(folder: Path) -> Package:
    """Open the bundle or the adapter in a folder, and verify every hash.

    Raises:
        BundleError, AdapterError: the folder has neither, or a damaged one.
    """
    return adapter.load(folder) if adapter.is_adapter(folder) else bundle.load(folder)


def publish(source: Package, remote: Remote, *, replace: bool = False) -> int:
    """Store a verified package at `remote`, and compare the result; return the number of files sent.

    Complete files are skipped, and a partial upload is continued. If a remote takes files one by one, an old manifest
    is removed first and the new one is written last. So nobody can pull a part.

    Raises:
        TransferError: another bundle is there and `replace` is false, or files that belong to no bundle.
        RemoteError: the remote fails, or has wrong bytes in the end.
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
    """Fetch the package at `remote` into `folder`, complete and verified, or not at all.

    Return the package and the number of files fetched.

    Raises:
        BundleError, AdapterError: the remote has neither, or `folder` has something that is neither.
        TransferError: another package is in `folder` and `replace` is false.
        RemoteError: the remote fails, or the hash of a file differs from the manifest.
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
    """Refuse to replace anything but a bundle or an adapter."""
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
    """Return the package in `folder` if it is identical and complete."""
    try:
        found = opened(folder)
    except Refused:
        return None
    file = found.folder / name
    return found if file.is_file() and file.read_bytes() == content else None


def _manifest(remote: Remote) -> tuple[str, bytes, Manifest] | None:
    """Return the name of the manifest at `remote`, its bytes and its content; None if there is none."""
    for name, required in ((MANIFEST, bundle.REQUIRED), (adapter.MANIFEST, adapter.REQUIRED)):
        if (content := remote.read(name)) is not None:
            return name, content, bundle.parse_manifest(content, f"{remote}: {name}", required=required)
    return None


def _listed(remote: Remote) -> set[str]:
    """Return the files that the manifest at `remote` lists, which may be replaced; an empty set if it is invalid."""
    try:
        found = _manifest(remote)
    except BundleError:
        return set()
    return set(found[2].files) if found else set()
