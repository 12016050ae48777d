"""A job as its caller sees it."""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from serving.errors import Conflict, shortened

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
MAX_ERRORS = 100
"""Kept of one job; all are counted."""
MAX_PLACE, MAX_ERROR = 200, 500
"""Characters of one."""
MAX_ERROR_BYTES = 100_000
"""Of all errors of one job as JSON in UTF-8; the reason why the job failed is kept beside them."""
MAX_STARTS = 2
"""In a row that came to nothing: whether or not the job was why the server was killed, it is not begun again."""
WINDOW = 10.0
"""Seconds over which the rate is taken."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work on a corpus, and how far it is. Times are seconds since the epoch."""

    id: str
    kind: str
    corpus: str
    caller: str = ""
    """The name of the API key that it was asked for with; empty where the server asks for none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    """Of all that says what is to be done; two that are the same do not run together."""
    state: State = "queued"
    done: int = 0
    total: int | None = None
    """None while it is not known."""
    position: int | None = None
    """Where to go on; None: from the beginning."""
    starts: int = 0
    """Since it last got further, but for those that the server itself ended."""
    errors: tuple[Mapping[str, str], ...] = ()
    """`place` and `error`, up to `MAX_ERRORS` in `MAX_ERROR_BYTES`."""
    error_count: int = 0
    result: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0
    started: float | None = None
    finished: float | None = None
    rate: float | None = None
    """Done a second, lately; None unless it is running."""

    @property
    def ended(self) -> bool:
        """Nothing more happens to it."""
        return self.state not in ("queued", "running")

    @property
    def eta_s(self) -> float | None:
        """Seconds it will take yet, at its rate."""
        if self.ended or self.total is None or not self.rate:
            return None
        return max(0, self.total - self.done) / self.rate


def progress_of(job: Job, things: str) -> str:
    """How far the job is, in words."""
    if job.state == "queued":
        return "it waits for the jobs before it"
    far = f"{job.done:,} of {job.total:,} {things} are done" if job.total else "it has begun"
    return far if job.eta_s is None else f"{far}, about {job.eta_s:.0f} s are left"


def error_of(place: str, message: str) -> Mapping[str, str]:
    """What is kept of an error: both may quote what was uploaded."""
    return {"place": shortened(place, MAX_PLACE), "error": shortened(message, MAX_ERROR)}


def as_json(value: Any) -> str:
    """Write JSON in as few bytes as UTF-8 has for it; a lone surrogate, which UTF-8 lacks, stays escaped."""
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()


def size_of(error: Mapping[str, str]) -> int:
    """Count the bytes that the ledger keeps of an error."""
    return len(as_json(error).encode())


class Duplicate(Conflict):
    """The same is queued or running; `job` is its id."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(f"the same is being done already: job {job}")


def digest_of(kind: str, corpus: str, options: Mapping[str, Any], content: str) -> str:
    """The same for the same work; `content` is the digest of what was uploaded for it."""
    return hashlib.sha256(json.dumps([kind, corpus, options, content], sort_keys=True).encode()).hexdigest()


class Pace:
    """How much is done a second, over the last `WINDOW` seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, done: int) -> None:
        """So much is done now. What went before the first of it is no part of the rate."""
        now = time.monotonic()
        if len(self._samples) == 1 and self._samples[0][1] == done:
            self._samples.clear()
        self._samples.append((now, done))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW:
            self._samples.popleft()

    @property
    def rate(self) -> float | None:
        """None before anything was done."""
        if len(self._samples) < 2:
            return None
        (began, before), (_, after) = self._samples[0], self._samples[-1]
        return (after - before) / max(time.monotonic() - began, 1e-3)
