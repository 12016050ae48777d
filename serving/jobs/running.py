"""A job as the work that is done for it sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.jobs.job import MAX_ERROR_BYTES, MAX_ERRORS, Job, Pace, error_of, size_of

Save = Callable[[Job], Awaitable[None]]


class Running:
    """What is asked for, where to go on, and whom to tell how far it is.

    Cancelled by asyncio: because its caller wants it, or because the server goes and the next one will go on. What is
    done behind the last checkpoint will then be done again.
    """

    def __init__(self, job: Job, spool: Path | None, save: Save) -> None:
        self.job = job
        self.spool = spool
        """The file that was uploaded for it."""
        self.total = job.total
        """Known from when the work sets it."""
        self.result: dict[str, Any] = dict(job.result)
        """What the job answers in the end; kept with every checkpoint."""
        self._errors, self._error_count = list(job.errors), job.error_count
        self._error_bytes = sum(map(size_of, job.errors))
        self._beyond = 0
        self._save = save
        self._pace = Pace()
        self._pace.add(job.done)

    @property
    def id(self) -> str:
        """Of the job."""
        return self.job.id

    @property
    def corpus(self) -> str:
        """What it works on."""
        return self.job.corpus

    @property
    def options(self) -> Mapping[str, Any]:
        """As they were submitted."""
        return self.job.options

    @property
    def position(self) -> int | None:
        """That of the last checkpoint; None before the first."""
        return self.job.position

    @property
    def done(self) -> int:
        """At the last checkpoint."""
        return self.job.done

    def stored_beyond(self, done: int) -> None:
        """So much was done behind the last checkpoint when the work stopped: told, and done again if it goes on."""
        self._beyond = done

    async def checkpoint(self, position: int, done: int) -> None:
        """All before `position` is done for good. On disk on return."""
        now = replace(self._now(), position=position, done=done)
        before = -1 if self.position is None else self.position
        await self._save(replace(now, starts=0) if (position, done) > (before, self.done) else now)

    async def tell(self, done: int) -> None:
        """So much is done, all of which would be done again."""
        await self._save(replace(self._now(), done=done))

    def kept(self, job: Job) -> None:
        """It is on disk so."""
        self.job = job
        self._pace.add(job.done)

    def error(self, place: str, message: str) -> None:
        """Something is wrong with a part; the rest goes on. Kept with the next checkpoint."""
        self._error_count += 1
        if len(self._errors) < MAX_ERRORS:
            error = error_of(place, message)
            if (taken := self._error_bytes + size_of(error)) <= MAX_ERROR_BYTES:
                self._errors.append(error)
                self._error_bytes = taken

    def forget_errors(self) -> None:
        """They will be found again."""
        self._errors, self._error_count, self._error_bytes = [], 0, 0

    @property
    def seen(self) -> Job:
        """The job at this moment, with its rate."""
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
