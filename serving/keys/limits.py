"""How much one key may ask for: requests and tokens a second, work at a time, disk, answers that nobody has read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from serving.context import holding
from serving.errors import NoRoom, Overloaded, TooLarge
from serving.keys.keys import Key
from serving.keys.loop_turn import LoopTurn

Clock = Callable[[], int]
"""Nanoseconds that never go back."""
SECOND = 1_000_000_000
RETRY_SECONDS = 1
"""When a request of the key may have ended: a guess, where the rates know."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """None is no limit."""

    requests_per_second: float | None = None
    tokens_per_second: float | None = None
    concurrency: int | None = None
    disk_bytes: int | None = None
    """Of all corpora that the key may touch."""
    unread_bytes: int | None = None
    threads: int = 2
    """That read corpora for the key at a time, and as many that write; what is beyond them waits."""
    jobs: int | None = None
    """Waiting or running."""


class Unread:
    """Bytes of answers that their callers have not read yet."""

    def __init__(self, limit: int, whose: str) -> None:
        self.limit, self._whose = limit, whose
        self._bytes = 0

    @contextmanager
    def holding(self, size: int, *, refusable: bool = True) -> Iterator[None]:
        """Around the sending of an answer; one that is not `refusable` is counted, whatever the limit.

        Raises:
            TooLarge: it is more than the limit by itself.
            Overloaded: with those that are not read yet it would be.
        """
        if refusable and size > self.limit:
            raise TooLarge(f"the answer of {size} bytes is more than the {self.limit} that may be sent: ask for less")
        if refusable and self._bytes + size > self.limit:
            raise Overloaded(
                f"{self._whose} that nobody has read hold {self._bytes} bytes, with this one of {size} it were more "
                f"than {self.limit}",
                retry_after=RETRY_SECONDS,
            )
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size


class Bucket:
    """A token bucket that may be overdrawn: who owes nothing takes any amount, then waits until it is paid back.

    So a request larger than a second's worth passes like any other. What is saved is one second's worth at most. The
    state is one moment, as in the generic cell rate algorithm (ITU-T I.371), in whole nanoseconds: no rounding makes
    a caller who waited as told wait again.
    """

    def __init__(self, rate: float, clock: Clock) -> None:
        self._clock = clock
        self._set(rate)
        self._paid = clock() - self._saved

    def _set(self, rate: float) -> None:
        self._unit = SECOND / rate
        self._saved = max(0, SECOND - int(self._unit))

    def change(self, rate: float) -> None:
        """Go on by another rate; as much is owed, or saved, as before."""
        now, unit = self._clock(), self._unit
        self._set(rate)
        self._paid = max(now + int((self._paid - now) * self._unit / unit), now - self._saved)

    def wait(self) -> int:
        """Nanoseconds until something may be taken."""
        return max(0, self._paid - self._clock())

    def take(self, amount: float) -> None:
        """Take it, however much it is; what is below zero is given back."""
        self._paid = max(self._paid, self._clock() - self._saved) + int(amount * self._unit)


class Caller:
    """A key at work: what it has taken of its limits, which are `defaults` where it has none of its own."""

    def __init__(self, key: Key, defaults: Limits, clock: Clock = time.monotonic_ns) -> None:
        self._defaults, self._clock = defaults, clock
        self._running = 0
        self.loop_turn = LoopTurn()
        self.unread: Unread | None = None
        self._requests: tuple[float, Bucket] | None = None
        self._tokens: tuple[float, Bucket] | None = None
        self.limit(key)

    def limit(self, key: Key) -> None:
        """Go on by the limits that `key` has now, with what was taken so far."""
        defaults = self._defaults
        self.key = key
        self.threads = key.threads or defaults.threads
        self._concurrency = key.concurrency or defaults.concurrency
        self._disk_bytes = key.disk_bytes or defaults.disk_bytes
        self.jobs = key.jobs or defaults.jobs
        """How many of its may wait or run; None is as many as of others."""
        if unread := key.unread_bytes or defaults.unread_bytes:
            self.unread = self.unread or Unread(unread, f"answers to the key {key.name!r}")
            self.unread.limit = unread
        else:
            self.unread = None
        self._requests = self._rated(self._requests, key.requests_per_second or defaults.requests_per_second)
        self._tokens = self._rated(self._tokens, key.tokens_per_second or defaults.tokens_per_second)

    def _rated(self, before: tuple[float, Bucket] | None, rate: float | None) -> tuple[float, Bucket] | None:
        if rate is None or before is None:
            return (rate, Bucket(rate, self._clock)) if rate else None
        before[1].change(rate)
        return rate, before[1]

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Around a request: its tokens are charged to this key until it ends.

        Raises:
            Overloaded: too many at once, or too soon after the last ones.
        """
        if self._concurrency and self._running >= self._concurrency:
            raise Overloaded(
                f"{self._running} requests of the key {self.key.name!r} are running, its limit is {self._concurrency}",
                retry_after=RETRY_SECONDS,
            )
        self._take(self._requests, 1, "requests")
        self._running += 1
        try:
            with paid_by(self):
                yield
        finally:
            self._running -= 1

    def check_room(self, used: Callable[[], int], adding: int = 0) -> None:
        """Refuse to add to corpora that have used up its share of the disk, if it has one, or will have by `adding` so
        many bytes; where nobody knows how many, what begins below it is taken whole.

        Raises:
            NoRoom: they take as many bytes, or more.
        """
        if self._disk_bytes and ((taken := used()) >= self._disk_bytes or taken + adding > self._disk_bytes):
            more = f", {adding} more would come" if adding > 0 else ""
            raise NoRoom(
                f"the corpora of the key {self.key.name!r} take {taken} bytes of the {self._disk_bytes} that they may"
                f"{more}: delete documents, snapshots or corpora"
            )

    def charge(self, tokens: float, *, begun: bool = False) -> None:
        """Take tokens from the key's rate; for more of what has `begun` it owes, however much it owes already.

        Raises:
            Overloaded: it still owes for others; nothing is taken.
        """
        self._take(self._tokens, tokens, "tokens", begun=begun)

    def refund(self, tokens: int) -> None:
        """Give back what was charged for work that was not done."""
        if self._tokens:
            self._tokens[1].take(-tokens)

    def _take(self, limit: tuple[float, Bucket] | None, amount: float, what: str, *, begun: bool = False) -> None:
        if limit:
            rate, bucket = limit
            if not begun and (wait := bucket.wait()):
                raise Overloaded(
                    f"the key {self.key.name!r} has used up its {rate:g} {what} a second", retry_after=wait / SECOND
                )
            bucket.take(amount)


_CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)


def payer() -> Caller | None:
    """Whose request is being answered."""
    return _CALLER.get()


async def loop_turn() -> None:
    """Let others go on before the next step of the request, if the key has had one in this pass of the event loop."""
    if caller := _CALLER.get():
        await caller.loop_turn.take()


def paid_by(caller: Caller | None) -> AbstractContextManager[None]:
    """Around work for a request that may have been answered."""
    return holding(_CALLER, caller)


_PATIENT: ContextVar[bool] = ContextVar("patient", default=False)


def is_patient() -> bool:
    """Whether the work waits for a turn of its key, however many wait: that of a job does."""
    return _PATIENT.get()


def patient() -> AbstractContextManager[None]:
    """Around work that nobody waits for at a connection."""
    return holding(_PATIENT, True)


def charge(tokens: float, *, begun: bool = False) -> None:
    """Charge tokens to the key of the request that is being answered; without one (no keys, a warm-up) nobody pays.

    Raises:
        Overloaded: see `Caller.charge`.
    """
    if caller := _CALLER.get():
        caller.charge(tokens, begun=begun)


def check_paid() -> None:
    """Refuse what is charged when it is done, to a key that still owes tokens.

    Raises:
        Overloaded: see `Caller.charge`.
    """
    charge(0)


def refund(tokens: int) -> None:
    """Give back what `charge` took for work that was not done."""
    if caller := _CALLER.get():
        caller.refund(tokens)
