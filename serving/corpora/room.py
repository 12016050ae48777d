"""The share of the disk that the corpora of a key may take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from models.disk import size
from serving.corpora.corpora import Corpora
from serving.errors import Damaged, NotFound
from serving.keys.keys import Key
from serving.keys.limits import payer
from serving.stores.failures import naming

Sees = Callable[[str], bool]


@dataclass(frozen=True)
class Room:
    """What is left of it, by the corpora themselves, what lies in `folders` under their names (indexes, snapshots),
    uploads that wait, which `uploaded` counts, but for those of one job, and the answers kept for the key of a name,
    which `answers` counts. Blocking.
    """

    corpora: Corpora
    folders: Sequence[Path]
    uploaded: Callable[[Sees, str], int]
    answers: Callable[[str], int]

    def check(self, job: str = "") -> None:
        """Refuse to add anything for the key that pays for what is being done; for `job` if it is one.

        Raises:
            NoRoom: its corpora take all that they may.
            Unhealthy: the disk fails.
        """
        if caller := payer():
            caller.check_room(partial(self._used_by, caller.key, job))

    def check_restored(self, name: str, unpacked: int, job: str) -> None:
        """Refuse a snapshot of so many bytes in the place of the corpus `name` if there is no room for all of them.

        Raises:
            NoRoom, Unhealthy: as `check`.
        """
        if caller := payer():
            caller.check_room(partial(self._used_by, caller.key, job), unpacked - self._stored(name))

    def _used_by(self, key: Key, job: str) -> int:
        return self.used(key.sees, job) + self.answers(key.name)

    def used(self, sees: Sees, job: str = "") -> int:
        """Bytes, over all names that it takes, those of corpora that have left snapshots included.

        Of a corpus what the list of corpora says, so without its log, which is folded in sooner or later. One that is
        damaged counts for nobody.
        """
        stored = sum(self._stored(name) for name in self.corpora.names() if sees(name))
        return stored + sum(self._beside(sees)) + self.uploaded(sees, job)

    def _stored(self, name: str) -> int:
        with suppress(Damaged, NotFound):  # dropped since it was named
            _, held = self.corpora.corpus(name)
            return held.bytes
        return 0

    def _beside(self, sees: Sees) -> Iterator[int]:
        for folder in self.folders:
            with naming(folder):
                if folder.exists():
                    yield from (size(one) for one in folder.iterdir() if sees(one.name))
