"""The callers of a server: the API keys, their limits and their current usage."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from pathlib import Path

from serving.errors import NoRoom, Overloaded, TooLarge, Unhealthy
from serving.operations.context import holding
from serving.operations.keys import Key, KeysError, UnreadableError, digest, read_keys

log = logging.getLogger(__name__)
Clock = Callable[[], int]
"""Clock in nanoseconds that never goes back."""
SECOND = 1_000_000_000
RETRY_SECONDS = 1
"""Value of `Retry-After`, in seconds, for a key that has too many running requests. It estimates the time until one of
these requests ends."""
SHORT_SECONDS = 0.1
"""Maximum age, in seconds, of a short request. While a request of a key is at most this old, long work of other keys is
limited to `CPU_SHARE`."""
CPU_SHARE = 0.2
"""Share of a CPU that the long work of a key may use while short requests of other keys wait."""
CPU_BURST = int(0.01 * SECOND / CPU_SHARE)
"""Nanoseconds in which a key earns 10 ms of CPU time. Long work waits only if its key has used more than these 10 ms in
advance."""
PATIENT: ContextVar[bool] = ContextVar("patient", default=False)
"""True for work that may wait in its key's queues without a time limit, such as jobs. No connection waits for the
result of this work."""
LOOK_AGAIN = 1_000_000_000
"""Nanoseconds between two checks of the key file. A revoked key stays valid for at most this time."""
GRACE_SECONDS = 10.0
"""Seconds for which keys stay valid while their file can't be read."""
Version = tuple[int, int, int, int]


class Keyring:
    """The callers whose keys are in a key file.

    `find` checks at most once a second whether the file has changed. If a change makes the content of the file invalid,
    the old keys stay valid, and the error is logged. A mistake in an edit thus neither locks everybody out nor lets
    everybody in.

    If the file can't be read, a key may have been revoked in it. The old keys therefore stay valid for only `grace`
    seconds after the last check without an error. Then all keys are refused. After a check with an error, the next
    check reads the file again, even if the file has not changed.

    Raises:
        KeysError: when the object is created, the file can't be read or is not a key file.
    """

    def __init__(
        self, path: Path, defaults: Limits, clock: Clock = time.monotonic_ns, *, grace: float = GRACE_SECONDS
    ) -> None:
        self._path, self._defaults, self._clock, self._grace = path, defaults, clock, int(grace * SECOND)
        self._callers: tuple[Caller, ...] = ()
        self._version: Version | None = None
        self._complaint: str | None = None
        self._unreadable = False
        self._read()
        self._looked = self._known = clock()

    def find(self, secret: str) -> Caller | None:
        """Return the caller with this key, or None.

        The comparison takes constant time.

        Raises:
            Unhealthy: the key file can't be read, and the last check without an error was more than `grace` seconds
                ago.
        """
        now = self._clock()
        if now - self._looked >= LOOK_AGAIN:
            self._look(now)
        if self._unreadable and now - self._known > self._grace:
            raise Unhealthy(
                "the file of keys can't be read; the server's log has the reason", retry_after=LOOK_AGAIN / SECOND
            )
        given, found = digest(secret), None
        for caller in self._callers:
            if hmac.compare_digest(given, caller.key.sha256):
                found = caller
        return found

    def _look(self, now: int) -> None:
        self._looked, self._unreadable, complaint = now, False, None
        try:
            if _version(self._path) != self._version:
                self._read()
                log.info("read %d keys from %s", len(self._callers), self._path)
            self._known = now
        except KeysError as error:
            self._unreadable, complaint = isinstance(error, UnreadableError), str(error)
            if complaint != self._complaint:
                limit = f" for {self._grace / SECOND:g} s" if self._unreadable else ""
                log.error("the old keys stay valid%s: %s", limit, error)
        self._complaint = complaint

    def _read(self) -> None:
        """Read the file. A key keeps its current usage if its name stays the same, even if its limits have changed."""
        # Read the version before the content, so that the next check notices a replacement between the two reads.
        version = _version(self._path)
        keys, kept = read_keys(self._path), {caller.key.name: caller for caller in self._callers}
        self._callers = tuple(kept.get(key.name) or Caller(key, self._defaults, self._clock) for key in keys)
        for caller, key in zip(self._callers, keys, strict=True):
            if caller.key != key:
                caller.limit(key)
        self._version = version


def _version(path: Path) -> Version:
    try:
        found = path.stat()
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


# The limits of one key: requests and tokens per second, concurrency, threads, disk space, unread answers and jobs.


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of an API key. None means no limit, but for `jobs` it means the limit for callers without a key."""

    requests_per_second: float | None = None
    tokens_per_second: float | None = None
    concurrency: int | None = None
    disk_bytes: int | None = None
    """Maximum bytes of all corpora to which the key has access, on disk."""
    unread_bytes: int | None = None
    threads: int = 2
    """Maximum number of threads that read corpora for the key. The same maximum applies to threads that write. Further
    work waits."""
    jobs: int | None = None
    """Maximum waiting and running jobs. None means the limit for callers without a key."""


class Caller:
    """An API key with its limits and its current usage.

    `defaults` are the limits that apply if the key does not set its own.
    """

    def __init__(self, key: Key, defaults: Limits, clock: Clock = time.monotonic_ns) -> None:
        self._defaults, self._clock = defaults, clock
        self._running = 0
        self.loop_turn = LoopTurn()
        self.cpu_share = Bucket(CPU_SHARE, time.monotonic_ns)
        """Meter of the CPU time of the key's reading threads, in seconds."""
        self.unread: UnreadBytes | None = None
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.limit(key)

    def limit(self, key: Key) -> None:
        """Replace the caller's key by `key`, and the caller's limits by those of `key`. The usage does not change."""
        self.key = key
        own = key.model_dump(include={field.name for field in fields(Limits)}, exclude_none=True)
        self.limits = limits = replace(self._defaults, **own)
        if limits.unread_bytes:
            self.unread = self.unread or UnreadBytes(limits.unread_bytes, f"answers to the key {key.name!r}")
            self.unread.limit = limits.unread_bytes
        else:
            self.unread = None
        self._requests = self._rated(self._requests, limits.requests_per_second)
        self._tokens = self._rated(self._tokens, limits.tokens_per_second)

    def _rated(self, bucket: Bucket | None, rate: float | None) -> Bucket | None:
        if rate is None:
            return None
        if bucket is None:
            return Bucket(rate, self._clock)
        bucket.change(rate)
        return bucket

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Admit a request. Tokens that the `with` block uses are charged to this key.

        Raises:
            Overloaded: the key has too many running requests, or has exceeded its rate.
        """
        most = self.limits.concurrency
        if most and self._running >= most:
            raise Overloaded(
                f"{self._running} requests of the key {self.key.name!r} are running, and its limit is {most}",
                retry_after=RETRY_SECONDS,
            )
        self._take(self._requests, 1, "requests")
        self._running += 1
        _BEGUN[self] = time.monotonic()
        try:
            with charged_to(self):
                yield
        finally:
            self._running -= 1
            if not self._running:
                _BEGUN.pop(self, None)

    def check_room(self, used: Callable[[], int], adding: int = 0) -> None:
        """Raise `NoRoom` if the key's disk quota is reached, or if `adding` more bytes would exceed the quota.

        `used` returns the bytes of the key's corpora on disk. `adding` is 0 if the size of a write is unknown. Such a
        write is accepted completely if it begins below the quota, even if it then exceeds the quota.
        """
        most = self.limits.disk_bytes
        if most and ((taken := used()) >= most or taken + adding > most):
            more = f", and the request needs {adding} more" if adding > 0 else ""
            raise NoRoom(
                f"the corpora of the key {self.key.name!r} use {taken} of {most} allowed bytes{more}: "
                "delete documents, snapshots or corpora"
            )

    def charge(self, tokens: float, *, begun: bool = False) -> None:
        """Charge tokens to the key's rate limit. Tokens beyond the limit become a debt, which shrinks with time.

        With `begun`, the tokens are charged in spite of a debt, because the work that needs them has already begun.

        Raises:
            Overloaded: the key has a debt from earlier charges, and `begun` is False.
        """
        self._take(self._tokens, tokens, "tokens", begun=begun)

    def _take(self, bucket: Bucket | None, amount: float, what: str, *, begun: bool = False) -> None:
        if bucket is None:
            return
        if not begun and (wait := bucket.wait()):
            raise Overloaded(
                f"the key {self.key.name!r} has used up its {bucket.rate:g} {what} per second",
                retry_after=wait / SECOND,
            )
        bucket.take(amount)


_BEGUN: dict[Caller, float] = {}
"""For each caller with running requests, the start time of the latest one, in seconds of `time.monotonic`."""


def others_wait(caller: Caller) -> bool:
    """Return whether another caller has a running request that began at most `SHORT_SECONDS` ago."""
    since = time.monotonic() - SHORT_SECONDS
    return any(one is not caller and begun > since for one, begun in list(_BEGUN.items()))


class UnreadBytes:
    """Counter of answer bytes that clients have not read yet."""

    def __init__(self, limit: int, whose: str) -> None:
        self.limit, self._whose = limit, whose
        self._bytes = 0

    @contextmanager
    def holding(self, size: int, *, refusable: bool = True) -> Iterator[None]:
        """Count an answer of `size` bytes as unread while the `with` block runs.

        If the answer is not `refusable`, the limit does not apply.

        Raises:
            TooLarge: the answer is larger than the limit.
            Overloaded: the answer and the unread answers together exceed the limit.
        """
        if refusable and size > self.limit:
            raise TooLarge(f"the answer has {size} bytes, but only {self.limit} may be sent: ask for less")
        if refusable and self._bytes + size > self.limit:
            raise Overloaded(
                f"unread {self._whose} have {self._bytes} bytes; this answer of {size} bytes would exceed the "
                f"limit of {self.limit} bytes",
                retry_after=RETRY_SECONDS,
            )
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size


class Bucket:
    """A token bucket whose balance may become negative.

    A caller without debt may take any amount, even more tokens than the rate per second. The caller must then wait
    until the debt is paid. Tokens that are not taken are saved, up to the tokens of one second.

    The state is the time at which the debt is paid, in whole nanoseconds, as in the generic cell rate algorithm (ITU-T
    I.371). Whole nanoseconds avoid rounding errors. A caller who has waited for `Retry-After` therefore never has to
    wait again.
    """

    def __init__(self, rate: float, clock: Clock) -> None:
        self._clock = clock
        self._set(rate)
        self._paid = clock() - self._saved

    def _set(self, rate: float) -> None:
        self.rate = rate
        self._unit = SECOND / rate
        self._saved = max(0, SECOND - int(self._unit))

    def change(self, rate: float) -> None:
        """Change the rate. The debt in tokens stays the same.

        Saved tokens also stay, but at most the tokens of one second at the new rate.
        """
        now, unit = self._clock(), self._unit
        self._set(rate)
        self._paid = max(now + int((self._paid - now) * self._unit / unit), now - self._saved)

    def wait(self) -> int:
        """Return the time in nanoseconds until the balance is no longer negative, or 0 if it is not negative now."""
        return max(0, self._paid - self._clock())

    def take(self, amount: float) -> None:
        """Take any amount from the bucket. A negative amount returns tokens to the bucket."""
        self._paid = max(self._paid, self._clock() - self._saved) + int(amount * self._unit)


class LoopTurn:
    """FIFO queue for an API key's steps on the event loop, such as the start of a request.

    Each iteration of the event loop runs at most one step of the key.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False

    async def take(self) -> None:
        """Wait for an iteration of the event loop in which no other step of the API key runs.

        A step is a piece of work on the event loop, such as the start of a request.
        """
        if not self._taken:
            self._take()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _take(self) -> None:
        self._taken = True
        asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        self._taken = False
        while self._waiting and not self._taken:
            turn = self._waiting.popleft()
            if not turn.done():  # skip callers who were cancelled
                turn.set_result(None)
                self._take()


_CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller | None:
    """Return the caller of the current request, or None if the request has no API key."""
    return _CALLER.get()


async def loop_turn() -> None:
    """Wait for an iteration of the event loop in which no other step of the current API key runs (see `LoopTurn`).

    A key with many requests thus leaves time for the requests of other keys. Without an API key, return immediately.
    """
    if caller := _CALLER.get():
        await caller.loop_turn.take()


def charged_to(caller: Caller | None) -> AbstractContextManager[None]:
    """Charge the work in the `with` block to a caller, even if the caller's request is already answered."""
    return holding(_CALLER, caller)


def charge(tokens: float, *, begun: bool = False) -> None:
    """Charge tokens to the key of the current request, if it has a key. A negative number of tokens is a refund.

    With `begun`, the tokens are charged even if the key has a debt.

    Raises:
        Overloaded: the key has a debt from earlier charges, and `begun` is False.
    """
    if caller := _CALLER.get():
        caller.charge(tokens, begun=begun)


def check_no_debt() -> None:
    """Raise `Overloaded` if the key of the current request has a debt.

    Call this function before work whose cost is charged at the end.
    """
    charge(0)
