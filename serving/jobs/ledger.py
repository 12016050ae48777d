"""What is known of jobs after a restart: one SQLite file, every change of it on disk before it is told."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, get_args

from models.disk import fsync
from serving.failpoints import reach
from serving.jobs.job import Job, State
from serving.ports import StoreError
from serving.stores import files
from serving.stores.connections import connect
from serving.stores.failures import DamageError, is_damage, naming

FORMAT = 2
UNKNOWN = "?"
"""The generation of a corpus that was not noted with an answer: before format 2."""
_SCHEMA = f"""
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
  finished REAL
);
CREATE TABLE answers (
  caller TEXT NOT NULL,
  key TEXT NOT NULL,
  request TEXT NOT NULL,
  status INTEGER NOT NULL,
  headers TEXT NOT NULL,
  body BLOB NOT NULL,
  created REAL NOT NULL,
  generation TEXT NOT NULL DEFAULT '{UNKNOWN}',
  job TEXT,
  PRIMARY KEY (caller, key)
) WITHOUT ROWID;
CREATE INDEX answers_created ON answers (created);
"""
_TO_2 = f"""
ALTER TABLE answers ADD COLUMN generation TEXT NOT NULL DEFAULT '{UNKNOWN}';
ALTER TABLE answers ADD COLUMN job TEXT;
"""
_COLUMNS = (
    "id, kind, corpus, options, digest, state, done, total, position, errors, error_count, result, "
    "created, started, finished"
)
_STATES: dict[str, State] = {state: state for state in get_args(State)}
_JSON = ("options", "errors", "result")
_UNENDED = "state IN ('queued', 'running')"
_ENDED = "state NOT IN ('queued', 'running')"


class Ledger:
    """Blocking; from any thread.

    Raises:
        StoreError: the file can't be used; the message names it.
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
                if format > FORMAT:  # before anything is changed in it
                    raise StoreError(
                        f"{path}: it has the format {format}, this server reads up to {FORMAT}; start the version that "
                        "wrote it"
                    )
                self._connection.row_factory = sqlite3.Row
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = FULL")
                (wrong,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
                if format == 1 and wrong == "ok":
                    self._connection.executescript(f"BEGIN IMMEDIATE;{_TO_2}PRAGMA user_version = {FORMAT};COMMIT;")
            except (sqlite3.Error, OSError) as error:
                advice = "; move it away to start without the jobs it knows" if is_damage(error) else ""
                raise StoreError(f"{path}: {error}{advice}") from None
            if not format:
                raise StoreError(f"{path}: holds no jobs and no room for them; move it away to start with a new one")
            if wrong != "ok":
                raise StoreError(f"{path}: {wrong}; move it away to start without the jobs it knows")
            opened.pop_all()  # stays open

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Around changes that are made together; on disk on return.

        Raises:
            InsufficientStorage, Unhealthy: the disk does not take them.
        """
        with self._lock, naming(self._path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def unended(self) -> list[Job]:
        """Those that are queued or running, oldest first."""
        return self._jobs(f"WHERE {_UNENDED} ORDER BY number")

    def newest(self, limit: int) -> list[Job]:
        """The last `limit`, newest first."""
        return self._jobs("ORDER BY number DESC LIMIT ?", limit)

    def find(self, id: str) -> Job | None:
        """By its id."""
        return next(iter(self._jobs("WHERE id = ?", id)), None)

    def save(self, job: Job) -> None:
        """As it is now."""
        values = {name: getattr(job, name) for name in ("state", "done", "total", "position", "error_count")}
        values |= {"errors": _text(job.errors), "result": _text(job.result)}
        values |= {"started": job.started, "finished": job.finished}
        reach("jobs.before-checkpoint")
        with self.transaction() as connection:
            connection.execute(
                f"UPDATE jobs SET {', '.join(f'{name} = :{name}' for name in values)} WHERE id = :id",
                values | {"id": job.id},
            )
        reach("jobs.after-checkpoint")

    def prune(self, kept: int) -> None:
        """Forget all but the newest `kept` of those that ended."""
        with self.transaction() as connection:
            connection.execute(
                f"DELETE FROM jobs WHERE {_ENDED} AND number NOT IN "
                f"(SELECT number FROM jobs WHERE {_ENDED} ORDER BY number DESC LIMIT ?)",
                (kept,),
            )

    def close(self) -> None:
        """Nothing may be called afterwards."""
        with self._lock:
            self._connection.close()

    def _jobs(self, which: str, *values: Any) -> list[Job]:
        with self._lock, naming(self._path):
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM jobs {which}", values).fetchall()
            return [_job(row) for row in rows]


def _make(path: Path) -> None:
    """It has its name when it is whole, so that one without anything in it is damaged, and not new."""
    part = path.with_name(f".{path.name}.part")
    files.remove(part)
    with closing(sqlite3.connect(part, isolation_level=None)) as connection:
        connection.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {FORMAT};COMMIT;")
    fsync(part)
    files.move(part, path)


def insert(connection: sqlite3.Connection, job: Job) -> None:
    """A new one, within a transaction."""
    row = {name: getattr(job, name) for name in _COLUMNS.split(", ")}
    row |= {name: _text(row[name]) for name in _JSON}
    connection.execute(f"INSERT INTO jobs ({_COLUMNS}) VALUES ({', '.join(f':{name}' for name in row)})", row)


def _text(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value)


def _job(row: sqlite3.Row) -> Job:
    found = dict(row)
    try:
        found |= {name: json.loads(found[name]) for name in _JSON}
        return Job(**found | {"errors": tuple(found["errors"]), "state": _STATES[found["state"]]})
    except (KeyError, TypeError, ValueError):
        raise DamageError(f"what is written of the job {found['id']!r} is damaged") from None
