"""The server's job queue. It can submit, run, observe, cancel and resume jobs."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from models.bundle.disk import make_folder, size
from serving.corpora.ports import StoreError
from serving.errors import Conflict, NotFound, ServiceError, shutting_down
from serving.jobs.intake import Answered, Intake, Note
from serving.jobs.job import MAX_ERRORS, Job, Running, State, digest_of, error_of, retry_while_busy
from serving.jobs.ledger import EVERY, Ledger, Requests
from serving.jobs.spool import Spool, check_kept
from serving.operations.context import holding
from serving.operations.failpoints import reach
from serving.operations.files import disk_errors
from serving.operations.limits import PATIENT, Caller, charged_to, current_caller
from serving.operations.threads import run_to_end

log = logging.getLogger(__name__)
MAX_STARTS = 2
"""Maximum number of consecutive starts of a job without progress. The job is then not started again, because it may
have crashed the server."""
Work = Callable[[Running], Awaitable[dict[str, Any] | None]]
"""Function that does the work of one kind of job. It returns facts for the job's result. If it raises a `ServiceError`,
the job fails."""


class Jobs:
    """Job queue.

    Up to `at_once` jobs run at the same time. A corpus has at most one running job, except for jobs of the kinds in
    `beside`. Of each kind in `alone`, at most one job runs at a time. API keys take turns. If `at_once` is more than 1,
    at most `at_once` - 1 jobs of one key run at the same time. If one key has submitted a hundred jobs, the first job
    of another key therefore need not wait for them. Among jobs of one key, and among jobs of one corpus, the oldest
    runs first.

    The ledger stores each change of a job before callers see the change. The next server process resumes unfinished
    jobs. `accepting` is called when a job is submitted, and `ended` when a job ends. Both functions may block. Jobs run
    on one event loop, between `start` and `stop`.

    Raises:
        StoreError: the folder or the ledger can't be used.
    """

    def __init__(
        self,
        folder: Path,
        kinds: Mapping[str, Work],
        *,
        beside: Collection[str] = (),
        alone: Collection[str] = (),
        accepting: Note = lambda _: None,
        ended: Note = lambda _: None,
        at_once: int = 4,
        waiting: int = 100,
        kept: int = 1000,
        answer_bytes: int = 32_000_000,
    ) -> None:
        """Open the ledger of jobs.

        Three limits apply to each caller. `waiting` is the maximum number of the caller's waiting and running jobs,
        unless the API key sets another maximum. `kept` is the maximum number of the caller's ended jobs in the ledger.
        `answer_bytes` is the maximum size of the caller's stored answers (see `Requests`).
        """
        self._kinds, self._beside, self._alone = kinds, frozenset(beside), frozenset(alone)
        self._ended = ended
        self._at_once, self._kept = at_once, kept
        self._spools = folder / "spool"
        try:
            make_folder(self._spools)
        except OSError as error:
            raise StoreError(f"{self._spools}: {error.strerror}") from None
        self._ledger = Ledger(folder / "ledger.sqlite")
        self.requests = Requests(self._ledger, answer_bytes)
        try:
            self._unended = {job.id: job for job in self._ledger.unfinished()}
            """Queued and running jobs by id, oldest first. The ledger contains the same jobs."""
        except ServiceError as error:
            raise StoreError(error.message) from None
        self._running: dict[str, Running] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._begun: dict[str, Job] = {}
        """The jobs in `_tasks`, by id."""
        self._turns: dict[str, int] = {}
        """Sequence number of each caller's last started job."""
        self._turn = count(1)
        self._cancelled: set[str] = set()
        self._stalled: set[str] = set()
        """Ids of jobs that stopped because of an unexpected error. The next server process resumes them. Until then,
        later jobs of the same corpus wait."""
        self._suspects = frozenset(job.id for job in self._unended.values() if job.state == "running")
        """Ids of jobs that were running when the previous server process was killed. They run one at a time, because
        one of them may have killed the server."""
        self._not_begun_again = set(self._suspects)
        """Suspects that this server process has not started yet. Their `starts` counts only starts by earlier server
        processes."""
        self._kept_before = frozenset(self._unended)
        """Ids of jobs that an earlier server process accepted. Their uploads are checked before they run, because files
        may have changed while no server was running."""
        self._changes: dict[str, asyncio.Event] = {}
        """One event for each job for which a caller waits. The event is set at the next change of the job."""
        self._payers: dict[str, Caller] = {}
        """Callers to whom the tokens of jobs are charged, by the job's id. Jobs that an earlier server process accepted
        are not charged."""
        self._intake = Intake(
            self._ledger, self.requests, self._spools, self._unended, accepting=accepting, dropped=ended, most=waiting
        )
        self._started = self._stopped = False
        for upload in self._spools.iterdir():  # delete uploads of ended jobs, and uploads without a job
            if upload.name not in self._unended:
                upload.unlink()

    def start(self) -> None:
        """Start the queue and resume unfinished jobs."""
        if not self._stopped:
            self._started = True
            self._schedule()

    async def stop(self) -> None:
        """Stop the queue. The next server process resumes the running jobs."""
        self._stopped = self._intake.closed = True
        for task in self._tasks.values():
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks.values())
        await asyncio.to_thread(self._record_interruption)
        for id in list(self._changes):
            self._tell(id)

    def _record_interruption(self) -> None:
        """Record that a regular shutdown, not a crash, interrupted the running jobs."""
        try:
            for job in list(self._unended.values()):
                if job.state == "running" and job.id not in self._not_begun_again:
                    self._ledger.save(replace(job, state="queued", starts=max(0, job.starts - 1)))
        except (ServiceError, OSError) as error:
            log.error("could not record that a shutdown interrupted the running jobs: %s", error)

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    def spool(self) -> Spool:
        """Create temporary storage for an upload."""
        return Spool(self._spools)

    async def submit(
        self,
        kind: str,
        corpus: str,
        options: Mapping[str, Any],
        *,
        spool: Spool | None = None,
        answered: Answered | None = None,
    ) -> Job:
        """Queue a job.

        When this method returns, the job is on disk and will be done even if the server restarts. The bytes of `spool`
        then belong to the job.

        `answered` has the request's idempotency key, and a function that returns the answer to the request. The key and
        the answer are stored together with the job.

        Before the job is stored, the function `accepting`, an argument of `Jobs`, is called with it. Errors of this
        function are raised, too.

        Raises:
            Conflict: the corpus is being deleted or renamed.
            Duplicate: an equal job is queued or running.
            Overloaded: the caller has as many waiting and running jobs as allowed.
            InsufficientStorage: the disk is full.
            Unhealthy: the server is shutting down, or the disk fails.
        """
        digest = digest_of(kind, corpus, options, spool.digest if spool else "")
        now, id = time.time(), uuid.uuid4().hex
        caller = key.key.name if (key := current_caller()) else ""
        job = Job(id=id, kind=kind, corpus=corpus, caller=caller, options=options, digest=digest, created=now)
        await self._intake.take(job, spool, answered, self._taken)
        return job

    def _taken(self, job: Job) -> None:
        self._unended[job.id] = job
        if caller := current_caller():
            self._payers[job.id] = caller
        self._schedule()

    def unfinished(self, kind: str, corpus: str) -> list[str]:
        """Return the ids of a corpus's queued and running jobs of a kind, oldest first."""
        return [job.id for job in list(self._unended.values()) if (job.kind, job.corpus) == (kind, corpus)]

    def under_way(self, kind: str, corpus: str) -> Job | None:
        """Return a corpus's oldest queued or running job of a kind, with its progress. Return None if there is none."""
        for id in self.unfinished(kind, corpus):
            return running.seen if (running := self._running.get(id)) else self._unended[id]
        return None

    def uploaded(self, of: Callable[[str], bool], besides: str) -> int:
        """Return the total bytes of uploads whose jobs are unfinished. This call blocks.

        Only uploads to corpora that `of` accepts are counted. The upload of the job `besides` is not counted.

        Raises:
            Unhealthy: the disk fails.
        """
        others = [job.id for job in list(self._unended.values()) if job.id != besides and of(job.corpus)]
        with disk_errors(self._spools):
            return sum(size(self._spools / id) for id in others)

    async def job(self, id: str) -> Job:
        """Return the current state of a job.

        Raises:
            NotFound: the job does not exist, or ended long ago.
        """
        if running := self._running.get(id):
            return running.seen
        job = self._unended.get(id) or await asyncio.to_thread(self._ledger.find, id)
        if job is None:
            raise NotFound(f"there is no job {id[:80]!r}")
        return job

    async def listing(
        self,
        of: Callable[[str], bool] = bool,
        limit: int = EVERY,
        behind: str | None = None,
        read: Callable[[Callable[[], list[Job]]], Awaitable[list[Job]]] = asyncio.to_thread,
    ) -> list[Job]:
        """List the jobs of corpora that `of` accepts, newest first.

        `behind` is the id of the last job on the previous page. `read` runs the query of the ledger in a thread.

        Raises:
            Invalid: the job `behind` does not exist any more.
        """
        found = await read(lambda: self._ledger.newest(of, limit, behind))
        return [running.seen if (running := self._running.get(job.id)) else job for job in found]

    async def cancel(self, id: str) -> Job:
        """Cancel a job. Completed work is kept. If the job has already ended, nothing changes.

        Raises:
            NotFound: the job does not exist.
            Unhealthy: the server is shutting down, and the next server process will resume the job.
        """
        await run_to_end(self._cancel(await self.job(id)))
        return await self.job(id)

    @asynccontextmanager
    async def deleting(self, corpus: str) -> AsyncIterator[None]:
        """Cancel the jobs of a corpus that is being deleted, so that no old job changes a new corpus of the same name.

        Queued and running jobs are cancelled, with one exception: a running job continues if its kind is in the
        argument `beside` of `Jobs` and not in `alone`. Kinds in `beside` change no documents. Those that are also in
        `alone` are cancelled because they take long. While the block runs, new jobs for the corpus are refused.

        Raises:
            Unhealthy: the server is shutting down, and the next server process would resume the jobs.
        """
        async with self._intake.closing(corpus):
            # Cancel the newest job first, so that the end of a job starts no waiting job.
            for job in reversed(list(self._unended.values())):
                begun = job.kind in self._beside - self._alone and job.id in self._tasks
                if job.corpus == corpus and not begun:
                    await run_to_end(self._cancel(job))
            yield

    @asynccontextmanager
    async def renaming(self, name: str, to: str) -> AsyncIterator[None]:
        """Refuse new jobs for the corpora `name` and `to` while the block runs.

        A job stores the name of its corpus, and would not find the renamed corpus.

        Raises:
            Conflict: a job of one of the corpora has not ended.
        """
        async with self._intake.closing(name), self._intake.closing(to):
            if left := next((job for job in self._unended.values() if job.corpus in (name, to)), None):
                raise Conflict(
                    f"job {left.id} of corpus {left.corpus!r} has not ended: rename the corpus after the job has ended"
                )
            yield

    async def _cancel(self, job: Job) -> None:
        running = self._running.get(job.id)
        self._cancelled.add(job.id)
        try:
            if task := self._tasks.get(job.id):
                task.cancel()
                await asyncio.wait([task])
            if job.id in self._unended:
                if self._stopped:
                    raise shutting_down()
                await self._end(running.seen if running else job, "cancelled")
        finally:
            self._cancelled.discard(job.id)
            self._schedule()  # a job whose cancellation could not be stored continues

    async def events(self, id: str, *, quiet: float = 15.0) -> AsyncIterator[Job | None]:
        """Yield the job now and after each change, until the job ends or the server stops.

        After `quiet` seconds without a change, yield None.

        The stream also ends if the job ends and is deleted before the caller reads again.
        """
        job = await self.job(id)
        while True:
            changed = asyncio.Event() if job.ended else self._changes.setdefault(id, asyncio.Event())
            yield job
            if job.ended or self._stopped:
                return
            while not changed.is_set():
                try:
                    await asyncio.wait_for(changed.wait(), quiet)
                except TimeoutError:
                    yield None
            try:
                job = await self.job(id)
            except NotFound:
                return

    def _schedule(self) -> None:
        while self._started and not self._stopped and len(self._tasks) < self._at_once and (job := self._next()):
            self._begun[job.id], self._turns[job.caller] = job, next(self._turn)
            # Use a new context, because the current context belongs to another request, which may already be answered.
            self._tasks[job.id] = task = asyncio.create_task(self._run(job), context=Context())
            task.add_done_callback(partial(self._left, job.id))

    def _next(self) -> Job | None:
        """Return the next job to start, or None if no job may start now.

        The next job is the oldest ready job of the caller with the fewest running jobs. Among callers with equally many
        running jobs, the caller whose last job was started longest ago comes first.
        """
        running = Counter(job.caller for job in self._begun.values())
        fitting = (job for job in self._ready() if running[job.caller] < self._places(job.caller))
        return min(fitting, key=lambda job: (running[job.caller], self._turns.get(job.caller, 0)), default=None)

    def _places(self, caller: str) -> int:
        return max(1, self._at_once - 1) if caller else self._at_once

    def _ready(self) -> Iterator[Job]:
        """Yield the waiting jobs that may run at the same time as the running jobs, oldest first.

        At most one job of each corpus is yielded. Jobs of the kinds in `beside` do not count towards this limit. A
        yielded job may still have to wait, because of the limit `at_once` or because it is another API key's turn.
        """
        begun = [*self._begun.values(), *(job for job in self._unended.values() if job.id in self._stalled)]
        taken = {job.corpus for job in begun if job.kind not in self._beside}
        alone = self._alone & {job.kind for job in self._begun.values()}
        passed_over = self._cancelled | self._stalled | self._tasks.keys()
        for job in self._unended.values():
            if job.id in passed_over or job.kind in alone:
                continue
            if job.kind not in self._beside:
                if job.corpus in taken:
                    continue
                # Later jobs of the corpus must wait for this one, even if their caller's turn comes earlier.
                taken.add(job.corpus)
            if not (job.id in self._suspects and self._suspects & self._tasks.keys()):
                yield job

    def _left(self, id: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            log.error(
                "job %s stopped because of an unexpected error; it resumes when the server restarts", id, exc_info=error
            )
            self._stalled.add(id)
        for by_id in (self._running, self._tasks, self._begun):
            by_id.pop(id, None)
        self._tell(id)
        self._schedule()

    async def _run(self, job: Job) -> None:
        if job.starts >= MAX_STARTS:
            why = (
                f"the server was killed {job.starts} times in a row while this job was running, so the job is not "
                "started again"
            )
            await retry_while_busy(lambda: self._end(job, "failed", (job.kind, why)))
            return
        job = replace(job, state="running", started=job.started or _now(job.created), starts=job.starts + 1)
        await self._save(job)
        spool = self._spools / job.id
        running = self._running[job.id] = Running(job, spool if spool.exists() else None, self._save)
        state, error = await self._worked(running)
        await retry_while_busy(lambda: self._end(running.seen, state, error))

    async def _worked(self, running: Running) -> tuple[State, tuple[str, str] | None]:
        work = self._kinds.get(running.job.kind)
        if work is None:
            return "failed", (running.job.kind, "this server does not support this kind of job")
        try:
            if running.job.id in self._kept_before:
                await check_kept(running.job, self._spools / running.job.id)
            with charged_to(self._payers.get(running.job.id)), holding(PATIENT, True):
                running.result |= await work(running) or {}
        except ServiceError as error:
            return "failed", (error.field or running.job.kind, error.message)
        except Exception as error:
            log.exception("job %s failed", running.job.id)
            return "failed", (running.job.kind, f"internal error: {type(error).__name__}; the server's log has details")
        return "succeeded", None

    async def _end(self, job: Job, state: State, error: tuple[str, str] | None = None) -> None:
        if error:  # store the error that made the job fail, even if there are many errors
            kept = (*job.errors[: MAX_ERRORS - 1], error_of(*error))
            job = replace(job, errors=kept, error_count=job.error_count + 1)
        ended = replace(job, state=state, finished=_now(job.started or job.created), rate=None)

        def finish() -> None:
            self._ledger.save(ended)
            self._ended(ended)
            reach("jobs.finished")
            (self._spools / job.id).unlink(missing_ok=True)
            with suppress(ServiceError):  # the job has ended; the end of the next one deletes old jobs
                self._ledger.prune(job.caller, self._kept)

        async def finished() -> None:
            await asyncio.to_thread(finish)
            self._unended.pop(job.id, None)
            self._running.pop(job.id, None)
            self._payers.pop(job.id, None)
            self._stalled.discard(job.id)
            self._tell(job.id)

        await run_to_end(finished())

    async def _save(self, job: Job) -> None:
        async def saved() -> None:
            await asyncio.to_thread(self._ledger.save, job)
            self._unended[job.id] = job
            self._not_begun_again.discard(job.id)
            if running := self._running.get(job.id):
                running.kept(job)
            self._tell(job.id)

        await retry_while_busy(lambda: run_to_end(saved()))

    def _tell(self, id: str) -> None:
        """Notify the callers that wait for a change of the job."""
        if changed := self._changes.pop(id, None):
            changed.set()


def _now(after: float) -> float:
    """Return the time in seconds since the epoch, but at least `after`, because the clock may have been set back."""
    return max(time.time(), after)
