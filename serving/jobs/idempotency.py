"""`Idempotency-Key`: a repeated request gets the first answer and does nothing."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from serving.errors import Conflict, Invalid
from serving.jobs.ledger import UNKNOWN, Ledger

HEADER = "Idempotency-Key"
KEPT_SECONDS = 24 * 3600
MAX_KEY = 255
ROW_BYTES = 1000
"""Bytes of a stored answer besides its headers and body, such as key and digest."""
_EVICT = """
DELETE FROM answers WHERE caller = :caller AND key IN (
  SELECT key FROM (
    SELECT key, sum(bytes) OVER (ORDER BY created DESC ROWS UNBOUNDED PRECEDING) AS kept
    FROM answers WHERE caller = :caller AND key != :key
  ) WHERE kept > :room
)
"""
"""Deletes old answers, but never the answer to `key`, which may seem old because the clock was set back.
"""
_SPACE = uuid.UUID("5ab4ce0e-3c9f-4f43-8f5b-8a9a7a7f0c11")


class Answer(NamedTuple):
    """A stored answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Keyed(NamedTuple):
    """A request to be done only once."""

    caller: str
    """Name of the caller's API key, because idempotency keys are separate for each caller. Empty if the server has no
    API keys."""
    key: str
    request: str
    """Digest of the whole request."""
    generation: str = ""
    """Generation of the corpus that the request changes. The answer is valid only for this generation, because a
    restored or recreated corpus has lost the change."""

    @property
    def space(self) -> uuid.UUID:
        """Namespace for ids. If a crash makes the request run twice, it creates the same ids again."""
        return uuid.uuid5(_SPACE, json.dumps([self.caller, self.key, self.request]))


def check_key(key: str) -> str:
    """Return the key if it is legal.

    Raises:
        Invalid: the key is empty or too long.
    """
    if not 1 <= len(key) <= MAX_KEY:
        raise Invalid(f"must be 1 to {MAX_KEY} characters long, not {len(key)}", field=HEADER)
    return key


class Requests:
    """Stored answers, and requests that are being answered. The ledger of jobs keeps answers for a day.

    For each caller the newest answers are kept, up to `most` bytes.
    """

    def __init__(self, ledger: Ledger, most: int) -> None:
        self._ledger = ledger
        self._most = most
        self._under_way: set[tuple[str, str]] = set()

    @asynccontextmanager
    async def once(self, keyed: Keyed | None) -> AsyncIterator[Answer | None]:
        """Yield the stored answer to a repeated request, or None if there is no valid one. The block does the work.

        Raises:
            Conflict: the first request with this key is still running.
            Invalid: the first request with this key was a different one.
        """
        if keyed is None:
            yield None
            return
        place = keyed[:2]
        if place in self._under_way:
            raise Conflict(f"{HEADER}: the request that first came with this key is not answered yet")
        self._under_way.add(place)
        try:
            yield await asyncio.to_thread(self._find, keyed)
        finally:
            self._under_way.discard(place)

    async def note(self, keyed: Keyed, answer: Answer) -> None:
        """Store an answer. It is on disk on return."""

        def work() -> None:
            with self._ledger.transaction() as connection:
                self.keep(connection, keyed, answer)

        await asyncio.to_thread(work)

    def keep(self, connection: sqlite3.Connection, keyed: Keyed, answer: Answer, job: str | None = None) -> None:
        """Store an answer within a transaction, with the `job` that the request began, if any.

        Delete expired answers.
        """
        now, headers = time.time(), json.dumps(dict(answer.headers))
        of_today = now - KEPT_SECONDS, now + KEPT_SECONDS  # the clock may have been ahead
        connection.execute("DELETE FROM answers WHERE created < ? OR created > ?", of_today)  # each by the index
        size = ROW_BYTES + len(headers) + len(answer.body)
        if size > self._most:
            return
        connection.execute(
            "INSERT OR REPLACE INTO answers (caller, key, request, generation, status, headers, body, created, job, "
            "bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*keyed, answer.status, headers, answer.body, now, job, size),
        )
        if _bytes(connection, keyed.caller) > self._most:
            values = {"caller": keyed.caller, "key": keyed.key, "room": self._most - size}
            connection.execute(_EVICT, values)

    def bytes(self, caller: str) -> int:
        """Return the bytes of a caller's stored answers. Blocking."""
        with self._ledger.transaction() as connection:
            return _bytes(connection, caller)

    def _find(self, keyed: Keyed) -> Answer | None:
        with self._ledger.transaction() as connection:
            row = connection.execute(
                "SELECT request, status, headers, body, generation, (SELECT state FROM jobs WHERE id = job) AS state "
                "FROM answers WHERE caller = ? AND key = ? AND created > ?",
                (keyed.caller, keyed.key, time.time() - KEPT_SECONDS),
            ).fetchone()
        if row is None:
            return None
        if row["request"] != keyed.request:
            raise Invalid("another request came with this key before", field=HEADER)
        if row["generation"] not in (keyed.generation, UNKNOWN) or row["state"] in ("failed", "cancelled"):
            return None
        return Answer(row["status"], json.loads(row["headers"]), row["body"])


def _bytes(connection: sqlite3.Connection, caller: str) -> int:
    ((found,),) = connection.execute("SELECT coalesce(sum(bytes), 0) FROM answers WHERE caller = ?", (caller,))
    return int(found)
