"""What corpora take of the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from models.disk import size
from serving.corpora.corpora import Corpora
from serving.errors import ServiceError
from serving.jobs import Jobs
from serving.stores.failures import naming


@dataclass(frozen=True)
class Usage:
    """The corpora themselves, what lies in `folders` under their names (indexes, snapshots), uploads that wait."""

    corpora: Corpora
    folders: Sequence[Path]
    jobs: Jobs

    def of(self, sees: Callable[[str], bool]) -> int:
        """Bytes, over all names that it takes, those of corpora that have left snapshots included. Blocking.

        Of a corpus what the list of corpora says, so neither its log, which is folded in sooner or later, nor the room
        that deletions left in its file, which is for what comes. One that is damaged counts for nobody.

        Raises:
            Unhealthy: the disk fails.
        """
        names = [name for name in self.corpora.names() if sees(name)]
        return sum(map(self._stored, names)) + sum(self._beside(sees)) + self.jobs.uploaded(sees)

    def _stored(self, name: str) -> int:
        with suppress(ServiceError):  # damaged, or dropped since it was named
            _, held = self.corpora.corpus(name)
            return held.bytes
        return 0

    def _beside(self, sees: Callable[[str], bool]) -> Iterator[int]:
        for folder in self.folders:
            with naming(folder):
                if folder.exists():
                    yield from (size(one) for one in folder.iterdir() if sees(one.name))
