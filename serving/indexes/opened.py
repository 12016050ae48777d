"""How an index begins: with what was read beside the one before it, with what its folder keeps, or with its source."""

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
    """The builds in the `folder` of a corpus, a folder each, numbered."""

    folder: Path

    def newest_first(self) -> list[Path]:
        """All of them, whole or not."""
        return sorted((path for path in self.folder.glob("*-*") if path.is_dir()), reverse=True)

    def following(self) -> Path:
        """A name for the next."""
        numbers = [int(path.name.split("-")[0]) for path in self.newest_first()]
        return self.folder / f"{max(numbers, default=0) + 1:08d}-{secrets.token_hex(4)}"

    def erase(self) -> None:
        """Remove them, and the folder."""
        for generation in self.newest_first():
            saved.remove(generation)
        with suppress(OSError):  # not there, or not empty
            self.folder.rmdir()


class Opened(NamedTuple):
    """An index that has all that its source has."""

    seen: Seen
    tail: ExactIndex
    generation: Path | None = None
    """Where the main part is kept."""
    covered: int = 0
    """Key up to which it holds what there is."""


@dataclass(frozen=True)
class Opening:
    """Where to look, and what must be found there."""

    source: Source
    identity: Identity
    generations: Generations
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    threads: int = 1
    plan: Plan = field(default_factory=Plan)

    def opened(self, beside: Read | None) -> Opened:
        """Take `beside`, or what the folder keeps, or what the source has; whatever else is in the folder goes."""
        return (beside and self._taken(beside)) or self._kept() or self._anew()

    def _taken(self, beside: Read) -> Opened | None:
        """None if it does not fit what is there now.

        What has gone since is told by the keys that are there: of the tombstones the index that served meanwhile may
        have buried some.
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
            saved.remove(generation)  # also a build that did not come to its end, and what one has replaced
        return found

    def _caught_up(self, main: Main, tail: ExactIndex, last: int, gone: Keys) -> Opened:
        """With all that the source did since it held what is in `main` and `tail`, up to the key `last`."""
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
        with suppress(ServiceError):  # of a disk that fails or is full: they are forgotten another time
            self.source.bury(self.source.tombstones(self.source.last_key()))  # no index is kept that holds them
        found = read(self.generations.following(), self.identity.dim, self.source.vectors(0))
        seen = Seen((Part(found.main, Marks(len(found.main.keys))),), found.tail.held)
        if found.folder is None:
            return Opened(seen, found.tail)
        saved.save(found.folder, saved.vouched(found.manifest, self.identity, found.last))
        return Opened(seen, found.tail, found.folder, found.last)
