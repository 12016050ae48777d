"""Bundles to a remote and back, every hash checked at both ends."""

from __future__ import annotations

import shutil
from pathlib import Path

from models import bundle, destination
from models.bundle import MANIFEST, Bundle, BundleError, Manifest
from models.disk import naming
from models.errors import Refused
from models.remotes.base import Remote, RemoteError

DOWNLOADS = ".cache"
"""The hub's client keeps its notes there."""


class TransferError(Refused):
    """Something else is where the bundle is to go; the message says what, and what to do."""


def publish(source: Bundle, remote: Remote, *, replace: bool = False) -> int:
    """Store a verified bundle at `remote`, and compare what is there afterwards with it; the number of files sent.

    Files that are there already are not sent again, and beginnings of them are what a publication that was cut short
    has left: the same one goes on. Where a remote takes one file after another, an old manifest goes before anything
    comes, and the new one comes last: nobody pulls a part.

    Raises:
        TransferError: another bundle is there and `replace` was not given, or files that are of none.
        RemoteError: the remote fails, or holds other bytes in the end.
    """
    paths = {*source.manifest.files, MANIFEST}
    there = remote.files()
    same = {path for path in paths & there if remote.holds(path, source.folder / path)}
    others = there - same
    if foreign := others - paths - _listed(remote):
        raise TransferError(f"{remote}: holds {min(foreign)}, which is of no bundle and left alone; choose a new place")
    if MANIFEST not in same and not replace:
        cut = {path for path in others & paths if remote.begins(path, source.folder / path)}
        if others - cut:
            raise TransferError(
                f"{remote}: holds another {min(others - cut)}; --replace puts this bundle in the place of that one"
            )
    stale = others - paths
    if same == paths and not stale:
        return 0
    sent = [*sorted(paths - same - {MANIFEST}), MANIFEST]
    remote.put(source.folder, sent, removed=[*sorted(others - {MANIFEST}), *({MANIFEST} & there)])
    arrived = remote.files()
    for path in sent:
        if path not in arrived or not remote.holds(path, source.folder / path):
            raise RemoteError(f"{remote}: {path}: arrived damaged (not the bytes of {source.folder}); publish it again")
    return len(sent)


def pull(remote: Remote, folder: Path, *, replace: bool = False) -> tuple[Bundle, int]:
    """The bundle at `remote` as `folder`, whole and verified, or nothing; with the number of files fetched.

    Raises:
        BundleError: what is there is no bundle, or `folder` holds something that is none.
        TransferError: another bundle is in `folder` and `replace` was not given.
        RemoteError: the remote fails, or a file has not the hash that the manifest says.
        OSError: `folder` can't be written; names it.
    """
    content = remote.read(MANIFEST)
    if content is None:
        raise BundleError(f"{remote}: has no {MANIFEST}; is this the place of a bundle, and may you read it?")
    manifest = bundle.parse_manifest(content, f"{remote}: {MANIFEST}")
    if present := _present(folder, content):
        return present, 0
    if folder.is_dir() and any(folder.iterdir()) and not replace:
        destination.refuse_foreign(folder)
        raise TransferError(f"{folder}: holds another bundle, or a damaged one; --replace puts this one in its place")
    with naming(folder), destination.writing(folder) as draft:
        (draft / MANIFEST).write_bytes(content)
        _fetch(remote, manifest, draft)
        bundle.load(draft)
    return bundle.load(folder), len(manifest.files) + 1


def _fetch(remote: Remote, manifest: Manifest, draft: Path) -> None:
    for path, expected in manifest.files.items():
        (draft / path).parent.mkdir(parents=True, exist_ok=True)
        remote.fetch(path, draft)
        if bundle.sha256(draft / path) != expected:
            raise RemoteError(
                f"{remote}: {path}: damaged there or on its way (its SHA-256 is not the manifest's); nothing was kept"
            )
    shutil.rmtree(draft / DOWNLOADS, ignore_errors=True)


def _present(folder: Path, manifest: bytes) -> Bundle | None:
    """The bundle in `folder` if it is this very one, and whole."""
    try:
        found = bundle.load(folder)
    except BundleError:
        return None
    return found if (found.folder / MANIFEST).read_bytes() == manifest else None


def _listed(remote: Remote) -> set[str]:
    """What the manifest at `remote` lists, which alone may be replaced; nothing if it is that of something else."""
    content = remote.read(MANIFEST)
    try:
        return set() if content is None else set(bundle.parse_manifest(content, str(remote)).files)
    except BundleError:
        return set()
