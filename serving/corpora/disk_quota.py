"""Disk quota of an API key, for all its corpora together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from models.bundle.disk import size
from serving.corpora.backend import Backend
from serving.errors import Damaged, NotFound, NotServed
from serving.operations.files import disk_errors
from serving.operations.limits import current_caller

Sees = Callable[[str], bool]


@dataclass(frozen=True)
class DiskQuota:
    """Check of the disk usage of an API key's corpora against the key's quota. Methods block.

    The usage is the sum of the sizes of corpora, waiting uploads, stored answers to requests with an idempotency key,
    and the contents of `folders`. In each of these folders, the entry with the name of a corpus contains the index, the
    snapshots or the adapted encoder of this corpus.

    `uploaded(sees, job)` returns the total size in bytes of the waiting uploads to corpora whose names `sees` accepts.
    The upload of `job` is left out. `answers(name)` returns the bytes of the stored answers of the API key `name`.
    """

    corpora: Backend
    folders: Sequence[Path]
    uploaded: Callable[[Sees, str], int]
    answers: Callable[[str], int]

    def check(self, job: str = "", restored: str = "", unpacked: int = 0) -> None:
        """Raise an error if the key of the current request has used up its quota. The upload of `job` does not count.

        If `restored` is not empty, also check whether the quota has room for a restore, in which a snapshot of
        `unpacked` bytes replaces the corpus `restored`.

        Raises:
            NoRoom: the key has used its whole quota, or the restored corpus would exceed the quota.
            Unhealthy: the disk fails.
        """
        if caller := current_caller():
            key = caller.key
            adding = unpacked - self._stored(restored) if restored else 0
            caller.check_room(lambda: self.used(key.sees, job) + self.answers(key.name), adding)

    def used(self, sees: Sees, job: str = "") -> int:
        """Return the usage in bytes of all corpora whose names `sees` accepts.

        The upload of `job` and the stored answers to requests with an idempotency key are not included. Snapshots of
        deleted corpora are included. The size of a corpus is the size that the list of corpora shows. This size
        excludes the write-ahead log, which shrinks at the next checkpoint. A corpus that is damaged or can't be served
        counts as 0.
        """
        stored = sum(self._stored(name) for name in self.corpora.names() if sees(name))
        return stored + sum(self._beside(sees)) + self.uploaded(sees, job)

    def _stored(self, name: str) -> int:
        with suppress(Damaged, NotServed, NotFound):  # deleted after its name was listed
            _, held = self.corpora.corpus(name)
            return held.bytes
        return 0

    def _beside(self, sees: Sees) -> Iterator[int]:
        for folder in self.folders:
            with disk_errors(folder):
                if folder.exists():
                    yield from (size(one) for one in folder.iterdir() if sees(one.name))
