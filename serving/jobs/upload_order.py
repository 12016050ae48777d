"""Order of uploads and other writes.

An upload takes effect when it is accepted, although its job stores the documents later. The corpus therefore records
the acceptance.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from serving.corpora.ports import NamedCorpora
from serving.errors import Conflict, NotFound, ServiceError
from serving.jobs import Job, Jobs

log = logging.getLogger(__name__)
UPLOAD, RESTORE = "ingest", "restore"
"""Kinds of jobs: uploads and restores."""


class UploadOrder:
    """Recorder that notes in each corpus which uploads were accepted. Its methods block.

    The job of an upload stores the documents later. The record lets the job skip documents that other requests have
    written or deleted since the acceptance.
    """

    def __init__(self, store: NamedCorpora) -> None:
        self._store = store

    def accept(self, job: Job) -> None:
        """Record the acceptance of a job in its corpus if the job is an upload.

        Call this before the caller learns that the job is accepted.

        Raises:
            NotFound: the corpus does not exist.
            InsufficientStorage, Unhealthy: the disk fails.
        """
        if job.kind == UPLOAD:
            self._store.accept(job.corpus, job.id)

    def release(self, job: Job) -> None:
        """Delete the record of an ended upload. If the disk fails, the next start of the server deletes the record."""
        if job.kind == UPLOAD:
            try:
                self._store.release(job.corpus, job.id)
            except NotFound:  # the corpus was deleted with its records
                pass
            except ServiceError as error:
                log.error(
                    "corpus %r: %s; the record of job %s is deleted when the server restarts", job.corpus, error, job.id
                )

    def begin(self, unfinished: Callable[[str], Sequence[str]]) -> None:
        """Correct the records of accepted uploads when the server starts.

        Delete the records of ended uploads, and record the unfinished uploads that have no record. `unfinished` returns
        the ids of a corpus's unfinished uploads. Errors are logged.

        The acceptance and the end of an upload are each written both to the ledger of jobs and to the corpus. If a
        server was killed between these two writes, the corpus's records are wrong.
        """
        for name in self._store.names():
            try:
                noted, waiting = set(self._store.accepted(name)), set(unfinished(name))
                for job in noted - waiting:
                    self._store.release(name, job)
                for job in waiting - noted:
                    self._store.accept(name, job)
            except ServiceError as error:
                log.error("corpus %r: %s", name, error)


def check_stays(jobs: Jobs, corpus: str) -> None:
    """Check that no waiting or running job restores the corpus, because the restore would discard a write.

    Call this function immediately before each commit of a write.

    Raises:
        Conflict: such a job exists.
    """
    if restoring := jobs.unfinished(RESTORE, corpus):
        raise Conflict(f"corpus {corpus!r} is being restored by job {restoring[0]}: try again after the job has ended")
