"""A folder whose files are kept in a corpus: new and changed files are added, and deleted files are removed.

The metadata of each document name its file and the digest of the file. The corpus itself therefore says which files it
has, also after a restart, a restored snapshot, or on another machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from serving.commands.destinations import Destination
from serving.corpora.ingest import Options
from serving.corpora.ingest.uploading import PACKED, SUFFIXES
from serving.errors import Conflict, InsufficientStorage, Overloaded, ServiceError, Unhealthy

log = logging.getLogger(__name__)
WATCHED = "watched"
"""Field of the metadata with the folder, the file, and the SHA-256 of the file's content."""
POLL_SECONDS = 2.0
SETTLED_SECONDS = 1.0
"""Age of a file from which it counts as completely written."""
RETRIED = (Conflict, Overloaded, Unhealthy, InsufficientStorage)
"""Errors that may be gone at the next look."""
REST = 20
"""A look at all files takes at most one part in `REST` of the time."""
AT_ONCE = 4
"""Number of files that are read and embedded at a time."""

Prepare = Callable[[Path, dict[str, Any]], Options]
"""Function that returns the options for a file, whose documents get the given metadata."""


class Seen(NamedTuple):
    """State of a file when its digest was computed. A file with the same state is not read again."""

    changed: int
    size: int
    digest: str


@dataclass
class Round:
    """Result of one comparison of the folder with the corpus."""

    added: int = 0
    removed: int = 0
    documents: int = 0
    failed: list[str] = field(default_factory=list)
    """Errors of files."""
    left_out: list[str] = field(default_factory=list)
    """Errors of rows that were left out."""

    def __str__(self) -> str:
        """Return the counts as a line."""
        return f"{self.added} files with {self.documents} documents added or replaced, {self.removed} files removed"


class Folder:
    """A folder, and what of it is in the corpus."""

    def __init__(self, folder: Path, destination: Destination, prepare: Prepare) -> None:
        self._folder, self._destination, self._prepare = folder, destination, prepare
        self._name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
        """Identifier of the folder. Its path may say more than readers of the corpus should know."""
        self._seen: dict[str, Seen] = {}
        self._stored: dict[str, set[str]] = {}
        """Digests of each file that the corpus has documents of: one, unless a replacement was interrupted."""
        self._tried: dict[str, str] = {}
        """Digests of files that failed or have no documents. They are not tried again until they change."""

    async def load(self) -> None:
        """Ask the corpus which files it has."""
        async for metadata in self._destination.metadata({f"{WATCHED}.folder": self._name}):
            self._stored.setdefault(metadata[WATCHED]["file"], set()).add(metadata[WATCHED]["sha256"])

    async def synchronise(self, age: float = 0) -> Round:
        """Add new and changed files, and remove deleted ones. An error of a file concerns that file alone.

        Files that changed less than `age` seconds ago are left as they are.
        """
        round = Round()
        present, unsettled = await asyncio.to_thread(self._look, age)
        places = asyncio.Semaphore(AT_ONCE)

        async def add(file: str, digest: str) -> None:
            async with places:
                await self._add(file, digest, round)

        changed = {file: digest for file, digest in present.items() if self._tried.get(file) != digest}
        await asyncio.gather(*(add(*one) for one in changed.items() if self._stored.get(one[0]) != {one[1]}))
        there = {*present, *unsettled}
        self._tried = {file: digest for file, digest in self._tried.items() if file in there}
        for file in self._stored.keys() - there:
            await self._destination.remove(self._documents_of(file))
            del self._stored[file]
            round.removed += 1
        return round

    async def watch(self, tell: Callable[[Round], None]) -> None:
        """Synchronise for ever. `tell` is called after each round in which something happened.

        What fails for a reason that may pass is tried again, and told once.
        """
        told: list[str] = []
        while True:
            began, round = time.monotonic(), Round()
            try:
                round = await self.synchronise(SETTLED_SECONDS)
            except RETRIED as error:
                round.failed.append(str(error))
            if (round.added or round.removed or round.failed) and round != Round(failed=told):
                tell(round)
            told = round.failed
            await asyncio.sleep(max(POLL_SECONDS, REST * (time.monotonic() - began) * (not round.added)))

    async def _add(self, file: str, digest: str, round: Round) -> None:
        """Add a file, and then remove what was stored of an earlier content.

        If the corpus has documents of this content, it has all of them: a file is stored as a whole, or by a job, which
        the next server finishes.
        """
        known = self._stored.get(file, set())
        if digest not in known and not await self._store(file, digest, round):
            return
        if known:
            await self._destination.remove({**self._documents_of(file), f"{WATCHED}.sha256": {"$ne": digest}})
        self._stored[file], self._tried[file] = {digest}, digest
        round.added += 1

    async def _store(self, file: str, digest: str, round: Round) -> bool:
        """Store the documents of a file. Return whether all of them were stored."""
        about = {WATCHED: {"folder": self._name, "file": file, "sha256": digest}}
        try:
            options = self._prepare(Path(file), about)
            with Path(file).open("rb") as opened:
                added = await self._destination.add(opened, options)
        except RETRIED as error:
            round.failed.append(f"{file}: {error}")
            return False
        except (ServiceError, OSError) as error:
            round.failed.append(f"{file}: {error}")
            self._tried[file] = digest
            return False
        round.left_out += [f"{file}: {error}" for error in added.errors]
        if added.state != "succeeded":  # a part may be stored
            round.failed.append(f"{file}: {added.state} after {added.documents} documents")
            await self._destination.remove({**self._documents_of(file), f"{WATCHED}.sha256": digest})
            self._tried[file] = digest
            return False
        round.documents += added.documents
        return True

    def _documents_of(self, file: str) -> dict[str, Any]:
        return {f"{WATCHED}.folder": self._name, f"{WATCHED}.file": file}

    def _look(self, age: float) -> tuple[dict[str, str], set[str]]:
        """Return the digest of each file of documents, and the files that are still being written."""
        present, unsettled = dict[str, str](), set[str]()
        for path in self._files():
            name = path.as_posix()
            try:
                found = path.stat()
                seen = self._seen.get(name)
                if time.time() - found.st_mtime < age:
                    unsettled.add(name)
                elif seen and (seen.changed, seen.size) == (found.st_mtime_ns, found.st_size):
                    present[name] = seen.digest
                else:
                    with path.open("rb") as file:
                        present[name] = hashlib.file_digest(file, "sha256").hexdigest()
                    self._seen[name] = Seen(found.st_mtime_ns, found.st_size, present[name])
            except FileNotFoundError:
                pass
            except OSError as error:
                log.warning("%s: %s", name, error.strerror)
                unsettled.add(name)
        return present, unsettled

    def _files(self) -> Iterator[Path]:
        """Yield the files of known formats, without hidden files and folders.

        Raises:
            Unhealthy: a folder can't be read. Its files are not deleted files.
        """

        def unreadable(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError) or Path(error.filename) == self._folder:
                raise Unhealthy(f"{error.filename}: {error.strerror}")

        for folder, folders, files in os.walk(self._folder, onerror=unreadable):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(files):
                path = Path(folder, name)
                bare = path.with_suffix("") if path.suffix.lower() in PACKED else path
                if not name.startswith(".") and bare.suffix.lower() in SUFFIXES:
                    yield path
