"""Uploads count from when they were accepted, and corpora take note of that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from serving.errors import Conflict, NotFound, ServiceError
from serving.jobs import Job, Jobs
from serving.ports import Store

log = logging.getLogger(__name__)
UPLOAD, RESTORE = "ingest", "restore"
"""Kinds of jobs."""


class Acceptance:
    """What others write and remove from the acceptance of an upload to its end stays, see `Store.accept`. Blocking."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def accept(self, job: Job) -> None:
        """Before anybody is told that the job will be done.

        Raises:
            NotFound: there is no such corpus.
            InsufficientStorage, Unhealthy: the disk fails.
        """
        if job.kind == UPLOAD:
            self._store.accept(job.corpus, job.id)

    def release(self, job: Job) -> None:
        """When it has ended. Where the disk does not take that the next start does."""
        if job.kind == UPLOAD:
            try:
                self._store.release(job.corpus, job.id)
            except NotFound:  # and with the corpus all that was noted
                pass
            except ServiceError as error:
                log.error("corpus %r: %s; what is noted for job %s goes later", job.corpus, error, job.id)

    def begin(self, unended: Callable[[str], Sequence[str]]) -> None:
        """At the start: what is noted of jobs that are no more goes, and those of a corpus that are `unended` stay.

        A server may have been killed between its two files, and earlier versions took no note.
        """
        for name in self._store.names():
            try:
                noted, waiting = set(self._store.accepted(name)), set(unended(name))
                for job in noted - waiting:
                    self._store.release(name, job)
                for job in waiting - noted:
                    self._store.accept(name, job)
            except ServiceError as error:
                log.error("corpus %r: %s", name, error)


def check_stays(jobs: Jobs, corpus: str) -> None:
    """Refuse a write that would be gone with all else when a corpus is restored; to be asked at its commit.

    Raises:
        Conflict: a job is to do that.
    """
    if restoring := jobs.unended(RESTORE, corpus):
        raise Conflict(f"corpus {corpus!r} is being restored by job {restoring[0]}: write when that has ended")
