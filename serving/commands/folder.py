"""Synchronisation of a folder with a corpus: new and changed files are added, and deleted files are removed.

Each document has the name and the digest of its file in its metadata. The corpus itself therefore shows which files it
contains, even after a restart, after a restore, or on another machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import Any

from models.errors import Refused
from serving.commands.destinations import RETRIED, Destination
from serving.corpora.ingest.uploading import SUFFIXES, Options, suffix_of
from serving.errors import ServiceError, Unhealthy

WATCHED = "watched"
"""Metadata field with the folder, the file, and the SHA-256 digest of the file's content."""
POLL_SECONDS = 2.0
SETTLED_SECONDS = 1.0
"""Minimum seconds since the last change of a file. A file that changed more recently may be incomplete."""
REST = 20
"""Divisor that limits scanning: scans of the folder take at most `1 / REST` of the time."""
SUFFIXES_TOLD = 8
AT_ONCE = 4
"""Number of files that are read and embedded at the same time."""

Prepare = Callable[[Path, dict[str, Any]], Options]
"""Function that returns the options for ingesting a file. Its second argument is metadata for all documents of the
file."""


@dataclass
class Round:
    """Result of one synchronisation of the folder with the corpus."""

    added: int = 0
    removed: int = 0
    documents: int = 0
    failed: list[str] = field(default_factory=list)
    """Error messages of files that could not be added."""
    left_out: list[str] = field(default_factory=list)
    """Error messages of skipped rows."""
    ignored: Counter[str] = field(default_factory=Counter, compare=False)
    """Number of files with each suffix that belongs to no format. Files without a suffix have an empty one."""

    def __str__(self) -> str:
        """Return the counts as one line of text."""
        counts = f"{self.added} files with {self.documents} documents added or replaced, {self.removed} files removed"
        if not self.ignored:
            return counts
        most = self.ignored.most_common(SUFFIXES_TOLD)
        others = [f"{number} {suffix or 'without suffix'}" for suffix, number in most]
        if rest := self.ignored.total() - sum(number for _, number in most):
            others.append(f"{rest} with other suffixes")
        return f"{counts}; files of other formats ignored: {', '.join(others)}"


class Folder:
    """A folder that is synchronised with a corpus."""

    def __init__(self, folder: Path, destination: Destination, prepare: Prepare) -> None:
        self._folder, self._destination, self._prepare = folder, destination, prepare
        self._name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
        """Identifier of the folder. The corpus does not store the path of the folder, because the path may be
        confidential."""
        self._seen: dict[str, tuple[tuple[int, int], str]] = {}
        """Time of the last change, size and digest of each file. While time and size are the same, the digest is not
        computed again."""
        self._stored: dict[str, set[str]] = {}
        """Digests of each file that has documents in the corpus. A file has two digests if the replacement of its
        documents was interrupted, and none if its first attempt ended with a temporary error."""
        self._tried: dict[str, str] = {}
        """Digest of each file at its last attempt, except attempts with a temporary error. A file is not tried again
        while it has this digest."""
        self._keys: dict[str, tuple[str, str]] = {}
        """Digest of each file at its last attempt, and the idempotency key of this attempt and its repetitions."""

    async def load(self) -> None:
        """Load the list of the files that the corpus contains."""
        async for metadata in self._destination.metadata({f"{WATCHED}.folder": self._name}):
            self._stored.setdefault(metadata[WATCHED]["file"], set()).add(metadata[WATCHED]["sha256"])

    async def synchronise(self, age: float = 0) -> Round:
        """Add new and changed files, and remove deleted files.

        An error in one file does not affect other files. Files that changed less than `age` seconds ago are skipped.
        """
        round = Round()
        present, unsettled = await asyncio.to_thread(self._look, age, round)
        places = asyncio.Semaphore(AT_ONCE)

        async def add(file: str, digest: str) -> None:
            async with places:
                try:
                    await self._add(file, digest, round)
                except RETRIED as error:  # the documents of the file's earlier content are still there
                    round.failed.append(f"{file}: {error}")

        changed = {file: digest for file, digest in present.items() if self._tried.get(file) != digest}
        await asyncio.gather(*(add(*one) for one in changed.items() if self._stored.get(one[0]) != {one[1]}))
        there = {*present, *unsettled}
        self._seen = {file: state for file, state in self._seen.items() if file in there}
        self._tried = {file: digest for file, digest in self._tried.items() if file in there}
        self._keys = {file: attempt for file, attempt in self._keys.items() if file in there}
        for file in self._stored.keys() - there:
            await self._destination.remove(self._documents_of(file))
            del self._stored[file]
            round.removed += 1
        return round

    async def watch(self, tell: Callable[[Round], None]) -> None:
        """Synchronise the folder repeatedly. This method never returns.

        `tell` is called after each synchronisation that added, removed, ignored or failed to add a file. Files with
        temporary errors are tried again. Failures and ignored files that stay the same are reported once.
        """
        told, ignored = list[str](), Counter[str]()
        while True:
            began, round = time.monotonic(), Round()
            try:
                round = await self.synchronise(SETTLED_SECONDS)
            except RETRIED as error:
                round.failed.append(str(error))
            if ignored == round.ignored:
                round.ignored = Counter()
            else:
                ignored = round.ignored
            if round.ignored or ((round.added or round.removed or round.failed) and round != Round(failed=told)):
                tell(round)
            told = round.failed
            await asyncio.sleep(max(POLL_SECONDS, REST * (time.monotonic() - began) * (not round.added)))

    async def _add(self, file: str, digest: str, round: Round) -> None:
        """Add the current content of a file, then remove the documents of its earlier content.

        If the corpus already has documents of the current content, the file is not stored again. All documents of a
        file are stored by one commit or by one job. If the job is interrupted, the next server or command completes it.
        """
        replaces = file in self._stored
        if digest not in self._stored.get(file, set()) and not await self._store(file, digest, round):
            return
        self._stored.setdefault(file, set()).add(digest)
        if replaces:
            await self._destination.remove({**self._documents_of(file), f"{WATCHED}.sha256": {"$ne": digest}})
        self._stored[file], self._tried[file] = {digest}, digest
        round.added += 1

    async def _store(self, file: str, digest: str, round: Round) -> bool:
        """Store the documents of a file. Return True if this succeeded, even if invalid rows were skipped.

        If the job of the file fails or is cancelled, remove the documents that it has stored. After a temporary error,
        some documents may be stored. The next attempt with the same content has the same idempotency key, so it does
        not store these documents twice.
        """
        if self._keys.get(file, ("", ""))[0] != digest:
            self._keys[file] = digest, uuid.uuid4().hex
        about = {WATCHED: {"folder": self._name, "file": file, "sha256": digest}}
        try:
            options = self._prepare(Path(file), about)
            with Path(file).open("rb") as opened:
                added = await self._destination.add(opened, options, key=self._keys[file][1])
        except (ServiceError, Refused, OSError) as error:
            round.failed.append(f"{file}: {error}")
            if isinstance(error, RETRIED):
                self._stored.setdefault(file, set())
            else:
                self._tried[file] = digest
            return False
        round.left_out += [f"{file}: {error}" for error in added.errors]
        if added.state != "succeeded":  # some documents may be stored
            round.failed.append(f"{file}: {added.state} after {added.documents} documents")
            await self._destination.remove({**self._documents_of(file), f"{WATCHED}.sha256": digest})
            self._tried[file] = digest
            return False
        round.documents += added.documents
        return True

    def _documents_of(self, file: str) -> dict[str, Any]:
        return {f"{WATCHED}.folder": self._name, f"{WATCHED}.file": file}

    def _look(self, age: float, round: Round) -> tuple[dict[str, str], set[str]]:
        """Return the digests of the files that can be ingested, by file name, and the names of the skipped files.

        A skipped file is unreadable, or changed less than `age` seconds ago and may be incomplete. The errors of
        unreadable files are added to `round`.
        """
        present, unsettled = dict[str, str](), set[str]()
        for path in self._files(round):
            name = path.as_posix()
            try:
                found = path.stat()
                if not S_ISREG(found.st_mode):
                    continue
                state = found.st_mtime_ns, found.st_size
                if 0 <= time.time() - found.st_mtime < age:  # a time in the future says nothing about the age
                    unsettled.add(name)
                    continue
                if name not in self._seen or self._seen[name][0] != state:
                    with path.open("rb") as file:
                        self._seen[name] = state, hashlib.file_digest(file, "sha256").hexdigest()
                present[name] = self._seen[name][1]
            except FileNotFoundError:
                pass
            except OSError as error:
                round.failed.append(f"{name}: {error.strerror}")
                unsettled.add(name)
        return present, unsettled

    def _files(self, round: Round) -> Iterator[Path]:
        """Yield the files of known formats, except hidden files and files in hidden folders.

        Files of other formats are counted in `round`.

        Raises:
            Unhealthy: a folder can't be read. Its files must not be treated as deleted.
        """

        def unreadable(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError) or Path(error.filename) == self._folder:
                raise Unhealthy(f"{error.filename}: {error.strerror}")

        for folder, folders, files in os.walk(self._folder, onerror=unreadable):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(files):
                path = Path(folder, name)
                if name.startswith("."):
                    continue
                if suffix_of(path) in SUFFIXES:
                    yield path
                elif path.is_file():
                    suffix = path.suffix.lower()
                    round.ignored[suffix if suffix[1:].isalnum() else ""] += 1  # a title may have a full stop
