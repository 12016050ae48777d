"""A running job, as its work function sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.jobs.job import MAX_ERROR_BYTES, MAX_ERRORS, Job, Pace, error_of, size_of

Save = Callable[[Job], Awaitable[None]]


class Running:
    """The task of a job, the position to resume from, and methods to report progress.

    asyncio cancels the work if its caller cancels the job, or if the server stops and the next one will resume it. Work
    after the last checkpoint is then repeated.
    """

    def __init__(self, job: Job, spool: Path | None, save: Save) -> None:
        self.job = job
        self.spool = spool
        """The uploaded file."""
        self.total = job.total
        """The total amount of work, once the work function sets it."""
        self.result: dict[str, Any] = dict(job.result)
        """The job's final result, stored with every checkpoint."""
        self._errors, self._error_count = list(job.errors), job.error_count
        self._error_bytes = sum(map(size_of, job.errors))
        self._beyond = 0
        self._save = save
        self._pace = Pace()
        self._pace.add(job.done)

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def corpus(self) -> str:
        return self.job.corpus

    @property
    def options(self) -> Mapping[str, Any]:
        return self.job.options

    @property
    def position(self) -> int | None:
        """Position of the last checkpoint; None before the first."""
        return self.job.position

    @property
    def done(self) -> int:
        """Amount done at the last checkpoint."""
        return self.job.done

    def stored_beyond(self, done: int) -> None:
        """Report the work that a stopping job has done since its last checkpoint.

        This work is repeated if the job resumes.
        """
        self._beyond = done

    async def checkpoint(self, position: int, done: int) -> None:
        """Store that everything before `position` is done. On return this is on disk."""
        now = replace(self._now(), position=position, done=done)
        before = -1 if self.position is None else self.position
        await self._save(replace(now, starts=0) if (position, done) > (before, self.done) else now)

    async def tell(self, done: int) -> None:
        """Report progress without a checkpoint. After a restart, work since the last checkpoint is repeated."""
        await self._save(replace(self._now(), done=done))

    def kept(self, job: Job) -> None:
        """Use `job`, which the ledger has just stored, as the job's current state."""
        self.job = job
        self._pace.add(job.done)

    def error(self, place: str, message: str) -> None:
        """Report an error in one part of the job. The job goes on. The next checkpoint stores the error."""
        self._error_count += 1
        if len(self._errors) < MAX_ERRORS:
            error = error_of(place, message)
            if (taken := self._error_bytes + size_of(error)) <= MAX_ERROR_BYTES:
                self._errors.append(error)
                self._error_bytes = taken

    def forget_errors(self) -> None:
        """Delete the errors. Call this before work that will find them again."""
        self._errors, self._error_count, self._error_bytes = [], 0, 0

    @property
    def seen(self) -> Job:
        """The current state of the job, with its rate."""
        now = self._now()
        return replace(now, done=now.done + self._beyond, rate=self._pace.rate)

    def _now(self) -> Job:
        return replace(
            self.job,
            total=self.total,
            errors=tuple(self._errors),
            error_count=self._error_count,
            result=dict(self.result),
        )
