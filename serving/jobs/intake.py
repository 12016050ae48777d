"""Acceptance of new jobs. A job and its upload are on disk before the caller gets an answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from serving.errors import Conflict, Overloaded, shutting_down
from serving.jobs.job import Duplicate, Job
from serving.jobs.ledger import Answer, Keyed, Ledger, Requests, insert
from serving.jobs.spool import Spool
from serving.operations.limits import current_caller
from serving.operations.threads import run_to_end

Answered = tuple[Keyed, Callable[[Job], Answer]]
"""A request with an idempotency key, and the function that creates its answer from the new job."""
Note = Callable[[Job], None]
RETRY_SECONDS = 10


class Intake:
    """Acceptance of new jobs. Each corpus has its own lock, so that a slow commit does not delay other corpora."""

    def __init__(
        self,
        ledger: Ledger,
        requests: Requests,
        spools: Path,
        unfinished: Mapping[str, Job],
        *,
        accepting: Note,
        dropped: Note,
        most: int,
    ) -> None:
        """Create the intake. `most` is the maximum number of unfinished jobs of a caller without a limit of its own.

        `accepting` is called before a job is stored. If the job can't be stored, `dropped` is called. Both functions
        may block.
        """
        self._ledger, self._requests, self._spools, self._unended = ledger, requests, spools, unfinished
        self._accepting, self._dropped, self._most = accepting, dropped, most
        self._taking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._on_their_way = Counter[str]()
        """Number of jobs that are being submitted, by caller."""
        self._closing: list[str] = []
        self.closed = False
        """True if the server is stopping. New jobs are then refused. Jobs that are being submitted are still stored,
        and the next server process starts them."""

    async def take(self, job: Job, spool: Spool | None, answered: Answered | None, taken: Note) -> None:
        """Store a job with the upload in `spool`, if any. Then call `taken` with the job.

        If the request has an idempotency key, `answered` is not None, and the answer to the request is stored too.

        Raises:
            Conflict, Duplicate, Overloaded, InsufficientStorage, Unhealthy: see `Jobs.submit`.
        """
        async with self._alone(job.corpus):
            if self.closed:
                raise shutting_down()
            if job.corpus in self._closing:
                raise Conflict(f"corpus {job.corpus!r} is being deleted or renamed: try again in a moment")
            if same := next((one for one in self._unended.values() if one.digest == job.digest), None):
                raise Duplicate(same.id)
            self._check_few(job.caller)
            self._on_their_way[job.caller] += 1
            try:
                await run_to_end(self._taken(job, spool, answered, taken))
            finally:
                self._on_their_way[job.caller] -= 1

    def _check_few(self, caller: str) -> None:
        own = sum(job.caller == caller for job in self._unended.values()) + self._on_their_way[caller]
        most = ((key := current_caller()) and key.limits.jobs) or self._most
        if own >= most:
            whose = f" of the key {caller!r}" if caller else ""
            raise Overloaded(
                f"{own} jobs{whose} are waiting or running, which is the maximum", retry_after=RETRY_SECONDS
            )

    @asynccontextmanager
    async def closing(self, corpus: str) -> AsyncIterator[None]:
        """Refuse new jobs for a corpus while the block runs. Before the block, wait for jobs that are being stored."""
        async with self._alone(corpus):
            self._closing.append(corpus)
        try:
            yield
        finally:
            self._closing.remove(corpus)

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
        except BaseException:  # the caller will not learn the id of the job, so the job is dropped
            (self._spools / job.id).unlink(missing_ok=True)
            self._dropped(job)
            raise

    def _alone(self, corpus: str) -> asyncio.Lock:
        return self._taking.setdefault(corpus, asyncio.Lock())
