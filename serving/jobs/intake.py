"""How work comes in: whole and on disk before anybody is told, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from serving.errors import Conflict, Overloaded, going
from serving.jobs.idempotency import Answer, Keyed, note
from serving.jobs.job import Duplicate, Job
from serving.jobs.ledger import Ledger, insert
from serving.jobs.spool import Spool
from serving.jobs.threads import whole

Answered = tuple[Keyed, Callable[[Job], Answer]]
"""A request with a key, and how it is answered."""
Note = Callable[[Job], None]
RETRY_SECONDS = 10


class Intake:
    """One job at a time for each corpus: what keeps one waiting, a long commit, keeps no other."""

    def __init__(
        self, ledger: Ledger, spools: Path, unended: Mapping[str, Job], *, accepting: Note, dropped: Note, most: int
    ) -> None:
        self._ledger, self._spools, self._unended = ledger, spools, unended
        self._accepting, self._dropped, self._most = accepting, dropped, most
        self._taking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._on_their_way = 0
        self._leaving: list[str] = []
        self.closed = False
        """The next server takes what comes."""

    async def take(self, job: Job, spool: Spool | None, answered: Answered | None, taken: Note) -> None:
        """Keep it and its upload, note the answer of its request with it, and call `taken`.

        Raises:
            Conflict, Duplicate, Overloaded, Unhealthy: see `Jobs.submit`.
        """
        async with self._alone(job.corpus):
            if self.closed:
                raise going()
            if job.corpus in self._leaving:
                raise Conflict(f"corpus {job.corpus!r} is being deleted: ask again when it is gone")
            if same := next((one for one in self._unended.values() if one.digest == job.digest), None):
                raise Duplicate(same.id)
            if (waiting := len(self._unended) + self._on_their_way) >= self._most:
                raise Overloaded(f"{waiting} jobs are waiting or running", retry_after=RETRY_SECONDS)
            await whole(self._taken(job, spool, answered, taken))

    @asynccontextmanager
    async def leaving(self, corpus: str) -> AsyncIterator[None]:
        """Nothing comes in for it; what is coming in at this moment is in first."""
        async with self._alone(corpus):
            self._leaving.append(corpus)
        try:
            yield
        finally:
            self._leaving.remove(corpus)

    async def _taken(self, job: Job, spool: Spool | None, answered: Answered | None, taken: Note) -> None:
        self._on_their_way += 1
        try:
            await asyncio.to_thread(self._keep, job, spool, answered)
        finally:
            self._on_their_way -= 1
        taken(job)

    def _keep(self, job: Job, spool: Spool | None, answered: Answered | None) -> None:
        try:
            self._accepting(job)
            if spool:
                spool.keep(self._spools / job.id)
            with self._ledger.transaction() as connection:
                insert(connection, job)
                if answered:
                    note(connection, answered[0], answered[1](job), job.id)
        except BaseException:  # nobody was told of it
            (self._spools / job.id).unlink(missing_ok=True)
            self._dropped(job)
            raise

    def _alone(self, corpus: str) -> asyncio.Lock:
        return self._taking.setdefault(corpus, asyncio.Lock())
