"""A job as its caller sees it."""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from serving.errors import Conflict, shortened

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
MAX_ERRORS = 100
"""Maximum number of errors that are stored for one job. Further errors are only counted."""
MAX_PLACE, MAX_ERROR = 200, 500
"""Maximum characters of an error's place and message."""
MAX_ERROR_BYTES = 100_000
"""Maximum bytes of one job's stored errors, as JSON in UTF-8. The reason for the job's failure does not count."""
MAX_STARTS = 2
"""Consecutive starts without progress after which a job is not started again, because it may crash the server."""
WINDOW = 10.0
"""Seconds over which the rate is measured."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work on a corpus, and its progress. Times are seconds since the epoch."""

    id: str
    kind: str
    corpus: str
    caller: str = ""
    """Name of the API key that submitted it. Empty if the server requires none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    """Digest of the whole task. Two jobs with the same digest never run together."""
    state: State = "queued"
    done: int = 0
    total: int | None = None
    """None while it is unknown."""
    position: int | None = None
    """Position to resume from. None means the beginning."""
    starts: int = 0
    """Starts since its last progress, except those that a regular shutdown interrupted."""
    errors: tuple[Mapping[str, str], ...] = ()
    """`place` and `error` of each, up to `MAX_ERRORS` in `MAX_ERROR_BYTES`."""
    error_count: int = 0
    result: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0
    started: float | None = None
    finished: float | None = None
    rate: float | None = None
    """Recent speed per second. None unless it is running."""

    @property
    def ended(self) -> bool:
        """Return whether the job has reached a final state."""
        return self.state not in ("queued", "running")

    @property
    def eta_s(self) -> float | None:
        """Remaining seconds at the current rate."""
        if self.ended or self.total is None or not self.rate:
            return None
        return max(0, self.total - self.done) / self.rate


def progress_of(job: Job, things: str) -> str:
    """Describe the progress of a job in words."""
    if job.state == "queued":
        return "it waits for the jobs before it"
    far = f"{job.done:,} of {job.total:,} {things} are done" if job.total else "it has begun"
    return far if job.eta_s is None else f"{far}, about {job.eta_s:.0f} s are left"


def error_of(place: str, message: str) -> Mapping[str, str]:
    """Return an error for the ledger. Place and message are shortened, because they may quote the upload."""
    return {"place": shortened(place, MAX_PLACE), "error": shortened(message, MAX_ERROR)}


def as_json(value: Any) -> str:
    """Write JSON in as few bytes as UTF-8 allows. Lone surrogates, which UTF-8 lacks, stay escaped."""
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()


def size_of(error: Mapping[str, str]) -> int:
    """Return the bytes of an error in the ledger."""
    return len(as_json(error).encode())


class Duplicate(Conflict):
    """An equal job is queued or running; `job` is its id."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(f"the same is being done already: job {job}")


def digest_of(kind: str, corpus: str, options: Mapping[str, Any], content: str) -> str:
    """Return a digest that is equal for equal tasks. `content` is the digest of the upload."""
    return hashlib.sha256(json.dumps([kind, corpus, options, content], sort_keys=True).encode()).hexdigest()


class Pace:
    """Rate of progress over the last `WINDOW` seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, done: int) -> None:
        """Record the total done so far. Time before the first progress does not count."""
        now = time.monotonic()
        if len(self._samples) == 1 and self._samples[0][1] == done:
            self._samples.clear()
        self._samples.append((now, done))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW:
            self._samples.popleft()

    @property
    def rate(self) -> float | None:
        """Units per second; None before the first progress."""
        if len(self._samples) < 2:
            return None
        (began, before), (_, after) = self._samples[0], self._samples[-1]
        return (after - before) / max(time.monotonic() - began, 1e-3)


# A running job, as its work function sees it.

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

    async def report(self, done: int) -> None:
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
