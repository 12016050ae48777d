"""The record of a job, the interface for the function that does its work, and retries of its steps."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

from serving.errors import Backend, Conflict, Damaged, InsufficientStorage, NoRoom, Overloaded, Unhealthy, shortened
from serving.operations.context import BULK, holding

T = TypeVar("T")
State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
MAX_ERRORS = 100
"""Maximum number of errors that are stored for a job. Further errors are only counted."""
MAX_PLACE, MAX_ERROR = 200, 500
"""Maximum characters of an error's place in the upload, and maximum characters of its message."""
MAX_ERROR_BYTES = 100_000
"""Maximum bytes of a job's stored errors, as JSON in UTF-8. The error that made the job fail is stored in addition to
them."""
WINDOW = 10.0
"""Period in seconds over which the speed of a job is measured."""
TRIES = 6
"""Maximum number of attempts for a step of a job that fails in the engine. The delay between attempts doubles each
time."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job on a corpus, and its progress. All times are in seconds since the epoch."""

    id: str
    kind: str
    corpus: str
    caller: str = ""
    """Name of the API key that submitted the job. Empty if the server requires no keys."""
    options: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    """Digest of the job's kind, corpus, options and upload. Jobs with the same digest are never queued or running at
    the same time."""
    state: State = "queued"
    done: int = 0
    """Amount of work done at the last checkpoint or report."""
    total: int | None = None
    """Total amount of work. None if it is not known yet."""
    position: int | None = None
    """Position of the last checkpoint, from which the job resumes. None before the first checkpoint."""
    starts: int = 0
    """Number of starts since the last progress. A start that ended with a regular shutdown does not count."""
    errors: tuple[Mapping[str, str], ...] = ()
    """Errors, each with the keys `place` (in the upload) and `error` (the message). `MAX_ERRORS` and `MAX_ERROR_BYTES`
    limit them."""
    error_count: int = 0
    result: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0
    started: float | None = None
    finished: float | None = None
    rate: float | None = None
    """Current speed, in units of `total` per second. None unless the job is running."""

    @property
    def ended(self) -> bool:
        """True if the job is in a final state."""
        return self.state not in ("queued", "running")

    @property
    def eta_s(self) -> float | None:
        """Estimated remaining seconds at the current speed."""
        if self.ended or self.total is None or not self.rate:
            return None
        return max(0, self.total - self.done) / self.rate


def progress_of(job: Job, things: str) -> str:
    """Return the progress of a job as text. `things` is the unit of the job's work, such as "passages"."""
    if job.state == "queued":
        return "it waits for earlier jobs"
    far = f"{job.done:,} of {job.total:,} {things} are done" if job.total else "it has begun"
    return far if job.eta_s is None else f"{far}, about {job.eta_s:.0f} s are left"


def error_of(place: str, message: str) -> Mapping[str, str]:
    """Return an error for the ledger. `place` and `message` are shortened, because they may quote the upload."""
    return {"place": shortened(place, MAX_PLACE), "error": shortened(message, MAX_ERROR)}


def as_json(value: Any) -> str:
    """Return `value` as JSON.

    Of the non-ASCII characters, only lone surrogates are escaped, because UTF-8 can't encode them.
    """
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()


def size_of(error: Mapping[str, str]) -> int:
    """Return the number of bytes that an error needs in the ledger."""
    return len(as_json(error).encode())


class Duplicate(Conflict):
    """A job with the same digest is queued or running. `job` is its id."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(f"an equal job is already queued or running: job {job}")


def digest_of(kind: str, corpus: str, options: Mapping[str, Any], content: str) -> str:
    """Return the digest of a job. `content` is the digest of the upload.

    The option `naming` comes from the request's idempotency key. The digest leaves out this option, so that the same
    upload under another key is an equal job.
    """
    counted = {name: value for name, value in options.items() if name != "naming"}
    return hashlib.sha256(json.dumps([kind, corpus, counted, content], sort_keys=True).encode()).hexdigest()


class Pace:
    """Speed of a job over the last `WINDOW` seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, done: int) -> None:
        """Record that `done` units of work are done in total.

        Until `done` first grows, each call replaces the last one, so that `rate` does not count an initial wait.
        """
        now = time.monotonic()
        if len(self._samples) == 1 and self._samples[0][1] == done:
            self._samples.clear()
        self._samples.append((now, done))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW:
            self._samples.popleft()

    @property
    def rate(self) -> float | None:
        """Units of work per second. None before the first progress."""
        if len(self._samples) < 2:
            return None
        (began, before), (_, after) = self._samples[0], self._samples[-1]
        return (after - before) / max(time.monotonic() - began, 1e-3)


Save = Callable[[Job], Awaitable[None]]


class Running:
    """Interface that the work function of a job gets: the job, the upload, and methods to report progress.

    asyncio cancels the work function if the caller cancels the job, or if the server stops. If the server stops, the
    next server process resumes the job at the last checkpoint, and repeats the work after the checkpoint.
    """

    def __init__(self, job: Job, spool: Path | None, save: Save) -> None:
        self.job = job
        self.spool = spool
        """The uploaded file, if the job has one."""
        self.total = job.total
        """Total amount of work. The work function sets it."""
        self.result: dict[str, Any] = dict(job.result)
        """Facts for the job's result. Every checkpoint stores them."""
        self._errors, self._error_count = list(job.errors), job.error_count
        self._error_bytes = sum(map(size_of, job.errors))
        self._beyond = 0
        self._save = save
        self._pace = Pace()
        self._pace.add(job.done)

    def stored_beyond(self, done: int) -> None:
        """Set the amount of work (`done`) that was stored after the last checkpoint.

        The progress of the job includes this work. If the job is resumed, it repeats this work.
        """
        self._beyond = done

    async def checkpoint(self, position: int, done: int) -> None:
        """Store a checkpoint on disk.

        All work before `position` must be complete. `done` is the total amount of completed work.
        """
        now = replace(self._now(), position=position, done=done)
        before = -1 if self.job.position is None else self.job.position
        await self._save(replace(now, starts=0) if (position, done) > (before, self.job.done) else now)

    async def report(self, done: int) -> None:
        """Report the amount of completed work, but store no checkpoint.

        After a restart, the job repeats the work since the last checkpoint.
        """
        await self._save(replace(self._now(), done=done))

    def kept(self, job: Job) -> None:
        """Set the current state to `job`, which the ledger has just stored."""
        self.job = job
        self._pace.add(job.done)

    def error(self, place: str, message: str) -> None:
        """Report an error in one part of the job. The job continues.

        The next checkpoint or report stores the error. Beyond `MAX_ERRORS` or `MAX_ERROR_BYTES`, the error is only
        counted.
        """
        self._error_count += 1
        if len(self._errors) < MAX_ERRORS:
            error = error_of(place, message)
            if (taken := self._error_bytes + size_of(error)) <= MAX_ERROR_BYTES:
                self._errors.append(error)
                self._error_bytes = taken

    def forget_errors(self) -> None:
        """Delete the reported errors, before repeated work reports them again."""
        self._errors, self._error_count, self._error_bytes = [], 0, 0

    @property
    def seen(self) -> Job:
        """Current state of the job, including its speed."""
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


async def retry_while_busy(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` with the priority of bulk work, which may wait for interactive requests.

    Retry while the server is overloaded or stopping, the disk is full, or the engine fails.

    Raises:
        ServiceError: the engine failed `TRIES` times, or a retry can't help. For example, a retry can't help if stored
            data are damaged, or if the disk quota of an API key is used up.
    """
    failures = count(1)
    while True:
        try:
            with holding(BULK, True):
                return await work()
        except Overloaded as error:
            await asyncio.sleep(error.retry_after or 1)
        except (Damaged, NoRoom):
            raise
        except (Unhealthy, InsufficientStorage):
            await asyncio.sleep(1)
        except Backend:
            if (failed := next(failures)) == TRIES:
                raise
            await asyncio.sleep(2.0 ** (failed - 2))
