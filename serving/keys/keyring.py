"""The valid keys, from a file that is read again when it changes."""

from __future__ import annotations

import hmac
import logging
import time
from pathlib import Path

from serving.errors import Unhealthy
from serving.keys.keys import KeysError, UnreadableError, digest, read_keys
from serving.keys.limits import SECOND, Caller, Clock, Limits

log = logging.getLogger(__name__)
LOOK_AGAIN = 1_000_000_000
"""Nanoseconds between two looks at the file. A revoked key is valid for at most so much longer."""
GRACE_SECONDS = 10.0
"""Seconds for which keys stay valid while their file can't be read."""
Version = tuple[int, int, int, int]


class Keyring:
    """The callers of one key file.

    If the file's content is invalid, the old keys stay valid and the log says so. A mistake in an edit must neither
    lock everybody out nor let everybody in. An unreadable file may revoke a key. So the keys stay valid until `grace`
    seconds after the file was last known to be unchanged; then nobody gets in. In both cases each look reads the file
    again.

    Raises:
        KeysError: the file can't be read at the start.
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
        """Return the caller of a key, in constant time.

        Raises:
            Unhealthy: the file has been unreadable for too long.
        """
        now = self._clock()
        if now - self._looked >= LOOK_AGAIN:
            self._look(now)
        if self._unreadable and now - self._known > self._grace:
            raise Unhealthy(
                "the file of keys can't be read; the server's log says why", retry_after=LOOK_AGAIN / SECOND
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
                log.error("the keys stay as they were: %s", error)
        self._complaint = complaint

    def _read(self) -> None:
        """Read the file. A key of the same name keeps its usage, even if its limits have changed."""
        version = _version(self._path)  # before the content, so that a replacement meanwhile is noticed
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
