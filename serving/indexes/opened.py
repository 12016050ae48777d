"""Opening an index from vectors that were read beforehand, from its folder, or from its source."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from models.disk import make_folder
from serving.errors import ServiceError
from serving.indexes import saved
from serving.indexes.exact import ExactIndex
from serving.indexes.kind import Kind
from serving.indexes.main import Main, Marks
from serving.indexes.plan import Plan
from serving.indexes.reading import Read, Source, read
from serving.indexes.saved import Identity, UnfitError
from serving.indexes.seen import Part, Seen
from serving.ports import Keys

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Generations:
    """The numbered builds of a corpus, each in a subfolder of `folder`."""

    folder: Path

    def newest_first(self) -> list[Path]:
        """Return all builds, complete or not."""
        return sorted((path for path in self.folder.glob("*-*") if path.is_dir()), reverse=True)

    def following(self) -> Path:
        """Return a path for the next build."""
        numbers = [int(path.name.split("-")[0]) for path in self.newest_first()]
        return self.folder / f"{max(numbers, default=0) + 1:08d}-{secrets.token_hex(4)}"

    def erase(self) -> None:
        """Remove all builds and the folder."""
        for generation in self.newest_first():
            saved.remove(generation)
        with suppress(OSError):  # not there, or not empty
            self.folder.rmdir()


class Opened(NamedTuple):
    """An index that contains everything in its source."""

    seen: Seen
    tail: ExactIndex
    generation: Path | None = None
    """The folder of the main part."""
    covered: int = 0
    """Key up to which the main part contains what exists."""


@dataclass(frozen=True)
class Opening:
    """Sources from which an index is opened, and the identity that they must have."""

    source: Source
    identity: Identity
    generations: Generations
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    threads: int = 1
    plan: Plan = field(default_factory=Plan)

    def opened(self, beside: Read | None) -> Opened:
        """Open from `beside`, the folder or the source, whichever fits first.

        Everything else in the folder is removed.
        """
        return (beside and self._taken(beside)) or self._kept() or self._anew()

    def _taken(self, beside: Read) -> Opened | None:
        """Open from `beside`; return None if it does not fit the current source.

        Removals are found by comparing keys, because the index that served meanwhile may have buried tombstones.
        """
        held = np.concatenate([beside.main.keys, beside.tail.held.keys])
        try:
            gone = np.setdiff1d(held, self.source.keys(), assume_unique=True)
            found = self._caught_up(beside.main, beside.tail, beside.last, gone)
        except UnfitError as error:
            log.warning("%s: what was read beside is read again: %s", self.generations.folder, error)
            return None
        if beside.folder is None:
            return found
        make_folder(self.generations.folder)
        generation = beside.folder.rename(self.generations.following())
        saved.save(generation, saved.vouched(beside.manifest, self.identity, beside.last))
        return found._replace(generation=generation, covered=beside.last)

    def _kept(self) -> Opened | None:
        found = None
        for generation in self.generations.newest_first():
            if found is None and (generation / saved.MANIFEST).exists():
                try:
                    main, covered = saved.load(generation, self.identity, self.kinds, self.threads)
                    kind, count = main.approximate and main.approximate.kind.name, len(main.keys)
                    if kind and not self.plan.allows(kind, count):
                        raise UnfitError(f"{kind}, but by the server's options {count} vectors are searched exactly")
                    gone = self.source.tombstones(covered)
                    found = self._caught_up(main, ExactIndex(self.identity.dim), covered, gone)
                    found = found._replace(generation=generation, covered=covered)
                    continue
                except UnfitError as error:
                    log.warning("index %s is made anew from the store: %s", generation, error)
            saved.remove(generation)  # including unfinished and replaced builds
        return found

    def _caught_up(self, main: Main, tail: ExactIndex, last: int, gone: Keys) -> Opened:
        """Apply everything that the source did since `main` and `tail` were complete, up to the key `last`."""
        if last > self.source.last_key():
            raise UnfitError("it covers more than the store ever held")
        part = Part(main, Marks(len(main.keys))).without(gone)
        tail.remove(gone)
        for keys, vectors in self.source.vectors(last):
            tail.add(keys, vectors)
        seen = Seen((part,), tail.held)
        if seen.held != (there := self.source.count()):
            raise UnfitError(f"with what it holds {seen.held} vectors, in the store {there}")
        return Opened(seen, tail)

    def _anew(self) -> Opened:
        with suppress(ServiceError):  # the disk fails or is full: bury them another time
            self.source.bury(self.source.tombstones(self.source.last_key()))  # no stored index contains them
        found = read(self.generations.following(), self.identity.dim, self.source.vectors(0))
        seen = Seen((Part(found.main, Marks(len(found.main.keys))),), found.tail.held)
        if found.folder is None:
            return Opened(seen, found.tail)
        saved.save(found.folder, saved.vouched(found.manifest, self.identity, found.last))
        return Opened(seen, found.tail, found.folder, found.last)
