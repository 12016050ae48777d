"""SQLite file with the jobs, and with the answers to requests that have an idempotency key.

Every change is on disk before callers see it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from models.bundle.disk import fsync
from serving.corpora.ports import StoreError
from serving.errors import Conflict, Invalid
from serving.jobs.job import Job, State, as_json
from serving.operations.failpoints import reach
from serving.operations.files import DamageError, connect, disk_errors, is_damage, move, remove

FORMAT = 1
_SCHEMA = """
CREATE TABLE jobs (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  corpus TEXT NOT NULL,
  options TEXT NOT NULL,
  digest TEXT NOT NULL,
  state TEXT NOT NULL,
  done INTEGER NOT NULL,
  total INTEGER,
  position INTEGER,
  errors TEXT NOT NULL,
  error_count INTEGER NOT NULL,
  result TEXT NOT NULL,
  created REAL NOT NULL,
  started REAL,
  finished REAL,
  caller TEXT NOT NULL DEFAULT '',
  starts INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE answers (
  caller TEXT NOT NULL,
  key TEXT NOT NULL,
  request TEXT NOT NULL,
  status INTEGER NOT NULL,
  headers TEXT NOT NULL,
  body BLOB NOT NULL,
  created REAL NOT NULL,
  generation TEXT NOT NULL,
  job TEXT,
  bytes INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (caller, key)
) WITHOUT ROWID;
CREATE INDEX answers_created ON answers (created);
CREATE INDEX answers_by_caller ON answers (caller, created, bytes);
"""
_COLUMNS = [column.name for column in fields(Job) if column.name != "rate"]
_CHANGING = ("state", "done", "total", "position", "starts", "errors", "error_count", "result", "started", "finished")
_STATES: dict[str, State] = {state: state for state in get_args(State)}
EVERY = -1
"""Value of LIMIT in SQLite that means no limit."""
_JSON = ("options", "errors", "result")
_UNFINISHED = "state IN ('queued', 'running')"
_ENDED = "state NOT IN ('queued', 'running')"
IDEMPOTENCY_KEY = "Idempotency-Key"
KEPT_SECONDS = 24 * 3600
MAX_KEY = 255
ROW_BYTES = 1000
"""Estimated bytes of a stored answer besides its headers and its body, such as its key and its digest."""
_EVICT = """
DELETE FROM answers WHERE caller = :caller AND key IN (
  SELECT key FROM (
    SELECT key, sum(bytes) OVER (ORDER BY created DESC ROWS UNBOUNDED PRECEDING) AS kept
    FROM answers WHERE caller = :caller AND key != :key
  ) WHERE kept > :room
)
"""
"""SQL statement that deletes old answers, but never the answer to `key`. If the clock was set back, this new answer may
seem to be old."""
_SPACE = uuid.UUID("5ab4ce0e-3c9f-4f43-8f5b-8a9a7a7f0c11")


class Ledger:
    """The SQLite file of jobs. Its methods block. Any thread may call them.

    Raises:
        StoreError: the file can't be used; the message names the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with ExitStack() as opened:
            try:
                if not path.exists():
                    _make(path)
                self._connection = opened.enter_context(closing(connect(path)))
                (format,) = self._connection.execute("PRAGMA user_version").fetchone()
                if format > FORMAT:  # raise the error before the file is changed
                    raise StoreError(
                        f"{path}: has the format {format}, but this server supports formats up to {FORMAT}; use "
                        "the version that wrote the file"
                    )
                self._connection.row_factory = sqlite3.Row
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = FULL")
                (wrong,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
            except (sqlite3.Error, OSError) as error:
                advice = "; move the file away to start without its jobs" if is_damage(error) else ""
                raise StoreError(f"{path}: {error}{advice}") from None
            if not format:
                raise StoreError(f"{path}: has no tables for jobs; move the file away to start with a new one")
            if wrong != "ok":
                raise StoreError(f"{path}: {wrong}; move the file away to start without its jobs")
            opened.pop_all()  # keep the connection open

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block in one transaction. After the block, its changes are on disk.

        Raises:
            InsufficientStorage, Unhealthy: the disk fails.
        """
        with self._lock, disk_errors(self._path), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection

    def unfinished(self) -> list[Job]:
        """Return queued and running jobs, oldest first."""
        return self._jobs(f"WHERE {_UNFINISHED} ORDER BY number")

    def newest(self, of: Callable[[str], bool], limit: int, behind: str | None) -> list[Job]:
        """Return the newest `limit` jobs, newest first. Return only jobs whose corpus has a name that `of` accepts.

        If `behind` is the id of a job, only older jobs are returned. Nothing but the name of the corpus is read from
        jobs that are not returned.

        Raises:
            Invalid: there is no job with the id `behind`. It may have been deleted since the previous page.
        """
        if behind is not None and self.find(behind) is None:
            raise Invalid("names a job that does not exist any more: begin again with the first page", field="cursor")
        return self._jobs(
            "WHERE (:behind IS NULL OR number < (SELECT number FROM jobs WHERE id = :behind)) AND listed(corpus) "
            "ORDER BY number DESC LIMIT :limit",
            {"behind": behind, "limit": limit},
            of,
        )

    def find(self, id: str) -> Job | None:
        """Return the job with this id, or None."""
        return next(iter(self._jobs("WHERE id = :id", {"id": id})), None)

    def save(self, job: Job) -> None:
        """Update a job."""
        changes = ", ".join(f"{name} = :{name}" for name in _CHANGING)
        reach("jobs.before-checkpoint")
        with self.transaction() as connection:
            connection.execute(f"UPDATE jobs SET {changes} WHERE id = :id", _row(job))
        reach("jobs.after-checkpoint")

    def prune(self, caller: str, kept: int) -> None:
        """Delete the ended jobs of a caller, except for the newest `kept` jobs."""
        ended = f"FROM jobs WHERE caller = :caller AND {_ENDED}"
        with self.transaction() as connection:
            connection.execute(
                f"DELETE {ended} AND number NOT IN (SELECT number {ended} ORDER BY number DESC LIMIT :kept)",
                {"caller": caller, "kept": kept},
            )

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _jobs(
        self, which: str, values: Mapping[str, Any] = MappingProxyType({}), of: Callable[[str], bool] = bool
    ) -> list[Job]:
        with disk_errors(self._path):
            with self._lock:
                self._connection.create_function("listed", 1, of)
                rows = self._connection.execute(
                    f"SELECT {', '.join(_COLUMNS)} FROM jobs {which}", dict(values)
                ).fetchall()
            return [_job(row) for row in rows]


def _make(path: Path) -> None:
    """Create the ledger under a temporary name, and rename the complete file to `path`.

    An empty file at `path` is therefore a damaged ledger, and not one that is still being created.
    """
    part = path.with_name(f".{path.name}.part")
    remove(part)
    with closing(sqlite3.connect(part, isolation_level=None)) as connection:
        connection.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {FORMAT};COMMIT;")
    fsync(part)
    move(part, path)


def insert(connection: sqlite3.Connection, job: Job) -> None:
    """Insert a new job. The caller must have begun a transaction."""
    values = ", ".join(f":{name}" for name in _COLUMNS)
    connection.execute(f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({values})", _row(job))


def _row(job: Job) -> dict[str, Any]:
    row = {name: getattr(job, name) for name in _COLUMNS}
    return row | {
        "options": as_json(dict(job.options)),
        "errors": as_json(job.errors),
        "result": as_json(dict(job.result)),
    }


def _job(row: sqlite3.Row) -> Job:
    found = dict(row)
    try:
        found |= {name: json.loads(found[name]) for name in _JSON}
        return Job(**found | {"errors": tuple(found["errors"]), "state": _STATES[found["state"]]})
    except (KeyError, TypeError, ValueError):
        raise DamageError(f"the row of the job {found['id']!r} is damaged") from None


# With `Idempotency-Key`, a repeated request gets the answer to the first request, and changes nothing.


class Answer(NamedTuple):
    """A stored answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Keyed(NamedTuple):
    """A request with an idempotency key. It takes effect only once."""

    caller: str
    """Name of the caller's API key. Each caller has its own idempotency keys. Empty if the server has no API keys."""
    key: str
    request: str
    """Digest of the whole request."""
    generation: str = ""
    """Generation of the corpus that the request changes. A restored or recreated corpus has another generation, and
    does not contain the change. The stored answer is therefore valid for this generation only."""

    @property
    def space(self) -> uuid.UUID:
        """UUID namespace for the ids of this request's documents that have no id of their own.

        If the request runs twice because of a crash, both runs create the same ids.
        """
        return uuid.uuid5(_SPACE, json.dumps([self.caller, self.key, self.request]))


def check_key(key: str) -> str:
    """Return the key if it is valid.

    Raises:
        Invalid: the key is empty or too long.
    """
    if not 1 <= len(key) <= MAX_KEY:
        raise Invalid(f"must be 1 to {MAX_KEY} characters long, not {len(key)}", field=IDEMPOTENCY_KEY)
    return key


class Requests:
    """Stored answers to requests with an idempotency key, and the requests that are being answered.

    The ledger stores answers for a day. Each caller has at most `most` bytes of answers. The oldest answers are deleted
    first.
    """

    def __init__(self, ledger: Ledger, most: int) -> None:
        self._ledger = ledger
        self._most = most
        self._under_way: set[tuple[str, str]] = set()

    @asynccontextmanager
    async def once(self, keyed: Keyed | None) -> AsyncIterator[Answer | None]:
        """Yield the stored answer to a repeated request.

        If `keyed` is None, or if no stored answer applies, yield None. The block must then execute the request. A
        stored answer does not apply if its job failed or was cancelled, or if the corpus has been replaced.

        Raises:
            Conflict: the first request with this key is still running.
            Invalid: the first request with this key was a different request.
        """
        if keyed is None:
            yield None
            return
        place = keyed[:2]
        if place in self._under_way:
            raise Conflict(f"{IDEMPOTENCY_KEY}: the first request with this key is not answered yet")
        self._under_way.add(place)
        try:
            yield await asyncio.to_thread(self._find, keyed)
        finally:
            self._under_way.discard(place)

    async def note(self, keyed: Keyed, answer: Answer) -> None:
        """Store an answer on disk, unless it alone exceeds the limit on a caller's answers."""

        def work() -> None:
            with self._ledger.transaction() as connection:
                self.keep(connection, keyed, answer)

        await asyncio.to_thread(work)

    def keep(self, connection: sqlite3.Connection, keyed: Keyed, answer: Answer, job: str | None = None) -> None:
        """Store an answer, and delete expired answers. The caller must have begun a transaction.

        An answer that alone exceeds the limit on a caller's answers is not stored. `job` is the id of the job that the
        request submitted, if any.
        """
        now, headers = time.time(), json.dumps(dict(answer.headers))
        # Answers from the future are deleted, too, because the clock may have been wrong.
        of_today = now - KEPT_SECONDS, now + KEPT_SECONDS
        # Use two conditions, so that SQLite can use the index for each.
        connection.execute("DELETE FROM answers WHERE created < ? OR created > ?", of_today)
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
        """Return the total bytes of a caller's stored answers. This call blocks."""
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
            raise Invalid("another request has already used this key", field=IDEMPOTENCY_KEY)
        if row["generation"] != keyed.generation or row["state"] in ("failed", "cancelled"):
            return None
        return Answer(row["status"], json.loads(row["headers"]), row["body"])


def _bytes(connection: sqlite3.Connection, caller: str) -> int:
    ((found,),) = connection.execute("SELECT coalesce(sum(bytes), 0) FROM answers WHERE caller = ?", (caller,))
    return int(found)
