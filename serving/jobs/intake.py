"""How work comes in: whole and on disk before anybody is told, or not at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from serving.errors import Conflict, Overloaded, going
from serving.jobs.idempotency import Answer, Keyed, Requests
from serving.jobs.job import Duplicate, Job
from serving.jobs.ledger import Ledger, insert
from serving.jobs.spool import Spool
from serving.jobs.threads import whole
from serving.keys.limits import payer

Answered = tuple[Keyed, Callable[[Job], Answer]]
"""A request with a key, and how it is answered."""
Note = Callable[[Job], None]
RETRY_SECONDS = 10


class Intake:
    """One job at a time for each corpus: what keeps one waiting, a long commit, keeps no other."""

    def __init__(
        self,
        ledger: Ledger,
        requests: Requests,
        spools: Path,
        unended: Mapping[str, Job],
        *,
        accepting: Note,
        dropped: Note,
        most: int,
    ) -> None:
        """Take `most`, the jobs of a caller that may wait or run where its key says nothing else."""
        self._ledger, self._requests, self._spools, self._unended = ledger, requests, spools, unended
        self._accepting, self._dropped, self._most = accepting, dropped, most
        self._taking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._on_their_way = Counter[str]()
        """By caller."""
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
            self._check_few(job.caller)
            self._on_their_way[job.caller] += 1
            try:
                await whole(self._taken(job, spool, answered, taken))
            finally:
                self._on_their_way[job.caller] -= 1

    def _check_few(self, caller: str) -> None:
        own = sum(job.caller == caller for job in self._unended.values()) + self._on_their_way[caller]
        most = ((key := payer()) and key.jobs) or self._most
        if own >= most:
            whose = f" of the key {caller!r}" if caller else ""
            raise Overloaded(f"{own} jobs{whose} are waiting or running, as many as may", retry_after=RETRY_SECONDS)

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
        await asyncio.to_thread(self._keep, job, spool, answered)
        taken(job)

    def _keep(self, job: Job, spool: Spool | None, answered: Answered | None) -> None:
        try:
            self._accepting(job)
            if spool:
                spool.keep(self._spools / job.id)
            with self._ledger.transaction() as connection:
                insert(connection, job)
                if answered:
                    self._requests.keep(connection, answered[0], answered[1](job), job.id)
        except BaseException:  # nobody was told of it
            (self._spools / job.id).unlink(missing_ok=True)
            self._dropped(job)
            raise

    def _alone(self, corpus: str) -> asyncio.Lock:
        return self._taking.setdefault(corpus, asyncio.Lock())
