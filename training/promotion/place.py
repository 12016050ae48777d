"""The place from which bundles are served: immutable copies of bundles, and a link to the served copy."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TextIO

from models.bundle import bundle
from models.bundle.bundle import Bundle, BundleError
from models.bundle.disk import exchange_names, fsync, naming
from models.export import destination
from training.machine.interrupt import LockError, locked
from training.promotion.ledger import Ledger, PromotionError

DEFAULT, COPIES, LEDGER = "default", "promoted", "promotions"
LOCK = ".promotion.lock"
SHORT = 12
"""Number of characters of the fingerprint in a copy's name."""


@dataclass(frozen=True)
class Place:
    """Paths of a place to which bundles are promoted.

    `default` is the served path, a link to a copy of a bundle. Beside it are the folder of all copies of promoted
    bundles, and the ledger of decisions. A folder can contain several independent places, if their served paths have
    different names, such as `default` and `staging`.
    """

    default: Path

    @property
    def copies(self) -> Path:
        """Return the folder of the copies of promoted bundles."""
        return self._beside(COPIES)

    @property
    def ledger(self) -> Ledger:
        """Return the ledger of all promotions, refusals and rollbacks at this place."""
        return Ledger(self._beside(LEDGER, ".jsonl"))

    @contextmanager
    def locked(self, stream: TextIO) -> Iterator[None]:
        """Lock the place during the `with` block.

        If another process has the lock, wait and report this to `stream`. Once the lock is taken, repair the leftovers
        of a crash.

        Raises:
            OSError: the folder can't be written; the message names the folder.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.default.parent, name=LOCK))
            except LockError:
                print(f"waiting for another promotion to {self.default} to end", file=stream, flush=True)
                stack.enter_context(locked(self.default.parent, name=LOCK, wait=True))
            self._restore()
            yield

    def current(self) -> str | None:
        """Return the name of the served copy, or None if `default` is not a link to a copy."""
        if not self.default.is_symlink():
            return None
        target = self.default.readlink()
        return target.name if target.parent == Path(self.copies.name) else None

    def free_name(self, stem: str) -> str:
        """Return a name that no copy of a bundle in this place has ever had.

        The name is `stem` if possible, or else the first unused name among stem-2, stem-3 and so on.
        """
        taken = self.ledger.copies()
        name, number = stem, 1
        while name in taken or os.path.lexists(self.copies / name):
            number += 1
            name = f"{stem}-{number}"
        return name

    def serve(self, copy: str) -> None:
        """Serve the copy with the name `copy`, by a link at the served path `default`.

        Readers of `default` always see either the old or the new bundle, even after a crash. There is one exception: if
        `default` is a folder and the system can't exchange two names atomically, `default` is missing for a moment.
        After a crash in this moment, it is missing until `locked` restores it.

        If `default` was a folder, this folder is removed if a copy has the same files. Otherwise, it is moved to the
        folder of copies. Its name there begins with `uncopied` if it passes verification, and with `unverified` if it
        fails.
        """
        with naming(self.default):
            self._aside.unlink(missing_ok=True)
            self._aside.symlink_to(Path(self.copies.name) / copy)
            if self.default.is_dir() and not self.default.is_symlink():
                _exchange(self._aside, self.default)
            else:
                self._aside.replace(self.default)
            fsync(self.default.parent)
            self._clear_aside()

    def remove_copies(self, keep: Collection[str]) -> None:
        """Remove the copies of bundles whose names are not in `keep`, and the temporary folders that a crash left.

        Everything else in the folder of copies stays.
        """
        ours = re.compile(rf"[0-9a-f]{{{SHORT}}}(-\d+)?|\..*\.draft-bundle-.*|\..*\.previous-bundle")
        for path in self.copies.iterdir():
            if ours.fullmatch(path.name) and path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)

    def _beside(self, name: str, suffix: str = "") -> Path:
        """Return a path beside the served path, with the name `name` and the suffix `suffix`.

        If the served path is not named `default`, its own name becomes a part of the result. For example, the ledger of
        `staging` is `promotions-staging.jsonl`.
        """
        own = name if self.default.name == DEFAULT else f"{name}-{self.default.name}"
        return self.default.with_name(own + suffix)

    @property
    def _aside(self) -> Path:
        return self.default.with_name(f".{self.default.name}.aside")

    def _restore(self) -> None:
        """Restore the served folder if a crash left it under a temporary name.

        This can happen only on systems that can't exchange two names atomically.
        """
        if not os.path.lexists(self.default) and self._aside.is_dir() and not self._aside.is_symlink():
            self._aside.rename(self.default)
        self._clear_aside()

    def _clear_aside(self) -> None:
        if self._aside.is_symlink():
            self._aside.unlink()
        elif self._aside.exists():
            found = _loaded(self._aside)
            likely = self.copies.glob(f"{found.manifest.fingerprint[:SHORT]}*") if found else ()
            if found and any(each.manifest.files == found.manifest.files for each in map(_loaded, likely) if each):
                shutil.rmtree(self._aside)
            else:
                self.copies.mkdir(exist_ok=True)
                self._aside.rename(self.copies / self.free_name("unverified" if found is None else "uncopied"))


def _loaded(folder: Path) -> Bundle | None:
    try:
        return bundle.load(folder)
    except BundleError:
        return None


def _exchange(link: Path, folder: Path) -> None:
    """Exchange the names of the link and the folder, atomically if the system supports this."""
    if exchange_names(link, folder):
        return
    target = link.readlink()
    link.unlink()
    folder.rename(link)
    folder.symlink_to(target)


def open_place(default: Path) -> Place:
    """Check the served path `default`, and return its `Place`.

    Raises:
        PromotionError: a link can't be created at the path, or the path leads to something other than a folder.
    """
    if default.name in ("", "..") or default.name.split("-")[0] == COPIES:
        raise PromotionError(
            f"--default {default}: a link can't be created at this path; use a path such as artifacts/default"
        )
    if default.exists() and not default.is_dir():
        raise PromotionError(f"{default}: expected a folder or a link to a folder, so it is not replaced")
    return Place(default)


# Copies of promoted bundles, so that a repeated training does not change the served bundle.

COMPUTED = {"format_version", "files", "fingerprint"}


def copy(
    source: Bundle,
    folder: Path,
    *,
    dropped: Collection[str] = (),
    added: Mapping[str, bytes],
    scores: Mapping[str, float] | None = None,
) -> Bundle:
    """Copy the bundle `source` to `folder`, without the files `dropped` and with the additional files `added`.

    Unchanged files are hard links if possible. `scores` replaces the scores in the manifest, and None keeps them.

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
        manifest = source.manifest
        facts = {each.name: getattr(manifest, each.name) for each in fields(manifest) if each.name not in COMPUTED}
        facts |= {} if scores is None else {"scores": dict(scores)}
        written = bundle.write_manifest(draft, **facts)
        for path in kept:
            if written.files[path] != source.manifest.files[path]:
                raise BundleError(f"{source.folder / path}: changed during the promotion")
        if written.fingerprint != source.manifest.fingerprint:
            raise BundleError(f"{source.folder}: the copy has another fingerprint")
    return bundle.load(folder)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise BundleError(f"{source}: removed during the promotion") from None
    except OSError:  # The target is on another file system, or on a file system without hard links.
        shutil.copyfile(source, target)
