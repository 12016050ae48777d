"""Disk quota of an API key for all its corpora."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from models.bundle.disk import size
from serving.corpora.backend import Backend
from serving.errors import Damaged, NotFound
from serving.operations.files import disk_errors
from serving.operations.keys import Key
from serving.operations.limits import current_caller

Sees = Callable[[str], bool]


@dataclass(frozen=True)
class DiskQuota:
    """Disk usage of a key's corpora, checked against its quota. Blocking.

    Usage is the sum of the corpora, their indexes and snapshots in `folders`, waiting uploads, and stored answers.
    `uploaded` returns the bytes of all uploads except those of one job. `answers` returns the bytes of a key's answers.
    """

    corpora: Backend
    folders: Sequence[Path]
    uploaded: Callable[[Sees, str], int]
    answers: Callable[[str], int]

    def check(self, job: str = "") -> None:
        """Check that the key of the current request may store more data. The bytes of the upload of `job` do not count.

        Raises:
            NoRoom: the key's corpora use the whole quota.
            Unhealthy: the disk fails.
        """
        if caller := current_caller():
            caller.check_room(partial(self._used_by, caller.key, job))

    def check_restored(self, name: str, unpacked: int, job: str) -> None:
        """Check that the quota allows a snapshot of `unpacked` bytes to replace the corpus `name`.

        Raises:
            NoRoom: the snapshot exceeds the rest of the quota.
            Unhealthy: the disk fails.
        """
        if caller := current_caller():
            caller.check_room(partial(self._used_by, caller.key, job), unpacked - self._stored(name))

    def _used_by(self, key: Key, job: str) -> int:
        return self.used(key.sees, job) + self.answers(key.name)

    def used(self, sees: Sees, job: str = "") -> int:
        """Return the bytes used by all names that `sees` accepts, including dropped corpora with remaining snapshots.

        The size of a corpus is the size shown in the list of corpora. It excludes the write-ahead log, which shrinks at
        the next checkpoint. A damaged corpus counts as 0.
        """
        stored = sum(self._stored(name) for name in self.corpora.names() if sees(name))
        return stored + sum(self._beside(sees)) + self.uploaded(sees, job)

    def _stored(self, name: str) -> int:
        with suppress(Damaged, NotFound):  # dropped since its name was listed
            _, held = self.corpora.corpus(name)
            return held.bytes
        return 0

    def _beside(self, sees: Sees) -> Iterator[int]:
        for folder in self.folders:
            with disk_errors(folder):
                if folder.exists():
                    yield from (size(one) for one in folder.iterdir() if sees(one.name))
