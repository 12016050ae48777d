"""The keys that open the server now: those of the file, read again when it changes."""

from __future__ import annotations

import hmac
import logging
import time
from pathlib import Path

from serving.keys.keys import KeysError, digest, read_keys
from serving.keys.limits import Caller, Clock, Limits

log = logging.getLogger(__name__)
LOOK_AGAIN = 1_000_000_000
"""Nanoseconds. A key that is revoked is refused at most so much later."""


class Keyring:
    """The callers of one key file.

    A file that can't be read any more leaves the keys as they were and says so in the log: a slip in an edit must
    neither lock everybody out nor let everybody in.

    Raises:
        KeysError: it can't be read at the start.
    """

    def __init__(self, path: Path, defaults: Limits, clock: Clock = time.monotonic_ns) -> None:
        self._path, self._defaults, self._clock = path, defaults, clock
        self._callers: tuple[Caller, ...] = ()
        self._version = self._stat()
        self._looked = clock()
        self._read()

    def find(self, secret: str) -> Caller | None:
        """Whose key it is. It takes as long for a key that nearly fits as for any other."""
        if self._clock() - self._looked >= LOOK_AGAIN:
            self._look()
        given, found = digest(secret), None
        for caller in self._callers:
            if hmac.compare_digest(given, caller.key.sha256):
                found = caller
        return found

    def _look(self) -> None:
        self._looked = self._clock()
        version = self._stat()
        if version == self._version:
            return
        self._version = version
        try:
            self._read()
        except KeysError as error:
            log.error("the keys stay as they were: %s", error)
        else:
            log.info("read %d keys from %s", len(self._callers), self._path)

    def _read(self) -> None:
        """A key that did not change keeps what it has taken of its limits."""
        kept = {caller.key: caller for caller in self._callers}
        self._callers = tuple(
            kept.get(key) or Caller(key, self._defaults, self._clock) for key in read_keys(self._path)
        )

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:  # reading it says why
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
