"""Ingestion of a large upload. All rows are checked first. Documents are then embedded and stored in blocks."""

from __future__ import annotations

import asyncio
import uuid
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from serving.corpora.ingest.documents import Checked, checked, empty, names_within, unrepeated
from serving.corpora.ingest.uploading import Options, rows
from serving.corpora.ingest.vectors import VectorRule
from serving.jobs import Running
from serving.jobs.job import retry_while_busy
from serving.operations.threads import CancelToken, in_thread
from serving.settings import Settings

if TYPE_CHECKING:
    from serving.corpora.disk_quota import DiskQuota
    from serving.corpora.library import Library

T = TypeVar("T")
BLOCK_DOCUMENTS, BLOCK_CHARACTERS = 256, 100_000
"""Maximum number of documents, and maximum number of characters, in one block. Each block is stored in one commit."""
IN_FLIGHT = 6
"""Maximum number of blocks that are processed at the same time. Some blocks are embedded while others are read or
committed. Blocks share the engine and end at about the same time, so the first progress is reported after about this
number of blocks."""
LOOKED_AT = 2000
"""Number of rows that one call in a thread checks."""


async def ingest(library: Library, settings: Settings, disk_quota: DiskQuota, running: Running) -> dict[str, Any]:
    """Store the documents of an upload. Return the number of stored documents as `count`.

    If the disk is full, the job waits. If the disk quota of the API key is full, the job fails. When a job fails, the
    documents that are already stored are kept.

    With the option `on_error=fail`, an invalid row makes the job fail before any document is stored. With
    `on_error=skip`, invalid rows are skipped. Rows without ids get ids derived from the idempotency key or the job's
    id. A resumed job derives the same ids, so it never adds a row twice.
    """
    options = Options.model_validate(running.job.options)
    rule = await retry_while_busy(lambda: library.vector_rule(running.job.corpus))
    upload = _Upload.of(running, options, settings, replace(rule, embedded_by=options.embedded_by))
    left_out = frozenset[int]()
    if running.job.position is None or upload.options.on_error == "skip":
        left_out = await _examine(running, upload)
    if running.job.position is None:
        await running.checkpoint(0, 0)
    await _store(library, disk_quota, running, upload, left_out)
    return {"count": running.job.done}


@dataclass(frozen=True)
class _Upload:
    options: Options
    read: Callable[[], Generator[Checked]]
    """Function that yields all rows from the first one."""
    token: CancelToken
    """Token that makes the reader stop after the caller has left. Without this token, a reader that skips a million
    rows, or waits for a child process, would occupy a thread for a minute."""

    @classmethod
    def of(cls, running: Running, options: Options, settings: Settings, rule: VectorRule) -> _Upload:
        spool = running.spool
        assert spool is not None, "an upload has a spool until its job ends"

        def read() -> Generator[Checked]:
            with spool.open("rb") as file:
                naming = names_within(uuid.UUID(options.naming or running.job.id))
                yield from checked(rows(file, options, settings), settings, naming, replace(rule))

        return cls(options, read, CancelToken())

    async def taken(self, take: Callable[[], list[T]]) -> list[T]:
        """Call `take` in a thread, and return its rows.

        If the caller is cancelled, this method cancels the upload's `token`, which makes `take` stop.
        """
        return await in_thread(lambda: self.token.run(take), on_cancel=self.token.cancel)


async def _examine(running: Running, upload: _Upload) -> frozenset[int]:
    """Count the valid rows, and report the invalid rows. Return the numbers of the rows that repeat an earlier id.

    Only an 8-byte hash of each id is kept in memory. Rows whose hash occurs more than once are read again, and their
    ids are compared.

    Raises:
        Empty: the upload has no rows.
        ServiceError: a row is invalid, and the option `on_error` is "fail". The error is that of the row.
    """
    running.forget_errors()
    hashes = array("q")

    def reject(row: Checked) -> None:
        if row.error:
            if upload.options.on_error == "fail":
                raise row.error
            running.error(row.place, row.error.message)

    with closing(upload.read()) as every:
        while block := await upload.taken(lambda: [_looked_at(row) for row in islice(every, LOOKED_AT)]):
            for row, named in block:
                reject(row)
                if named is not None:
                    hashes.append(named)
    suspects = await in_thread(lambda: _repeated(hashes))  # it takes a second for ten million rows
    repeated = list[int]()
    if suspects:
        with closing(upload.read()) as every:
            again = unrepeated(row for row in every if row.document and hash(row.document.id) in suspects)
            while block := await upload.taken(lambda: [_looked_at(row) for row in islice(again, LOOKED_AT)]):
                for row, _ in block:
                    reject(row)
                    if row.error:
                        repeated.append(row.number)
    running.total = len(hashes) - len(repeated)
    if not hashes and not running.seen.error_count:
        raise empty()
    return frozenset(repeated)


def _looked_at(row: Checked) -> tuple[Checked, int | None]:
    """Return a row without its document, and the hash of the document's id. Without a document, the hash is None.

    The document is dropped, because the texts of many rows may have gigabytes.
    """
    return row._replace(document=None), None if row.document is None else hash(row.document.id)


def _repeated(hashes: array[int]) -> frozenset[int]:
    """Return the hashes that occur more than once."""
    kept, counts = np.unique(np.frombuffer(hashes, np.int64), return_counts=True)
    return frozenset(kept[counts > 1].tolist())


class _Flying:
    """A block of rows that is being embedded and stored."""

    def __init__(self, library: Library, running: Running, rows: Sequence[Checked], options: Options) -> None:
        documents = [row.document for row in rows if row.document]
        self.documents = len(documents)
        self.following = rows[-1].number + 1
        """Number of the first row after this block."""
        self.stored = False
        """True if the block was stored. A block that is cancelled after its commit is also stored."""
        self.adding = asyncio.create_task(
            retry_while_busy(
                lambda: library.add(
                    running.job.corpus,
                    documents,
                    options.chunking,
                    embedded_by=options.embedded_by,
                    job=running.job.id,
                    after_commit=self._land,
                )
            )
        )

    @property
    def ended_well(self) -> bool:
        return self.adding.done() and not self.adding.cancelled() and self.adding.exception() is None

    def _land(self) -> None:
        self.stored = True


async def _store(
    library: Library, disk_quota: DiskQuota, running: Running, upload: _Upload, left_out: frozenset[int]
) -> None:
    """Store the valid rows from the job's `position` to the end of the upload.

    Rows whose numbers are in `left_out` are not stored.
    """
    begin = running.job.position or 0
    flying = deque[_Flying]()

    async def land() -> None:
        """Wait until the first block in `flying` is stored, which is the first block after the last checkpoint.

        Then save one checkpoint for this block and for the blocks directly after it that are also stored.
        """
        await flying[0].adding
        documents = 0
        while flying and flying[0].ended_well:
            block = flying.popleft()
            running.result["truncated"] = running.result.get("truncated", 0) + block.adding.result().truncated
            documents += block.documents
            following = block.following
        await running.checkpoint(following, running.job.done + documents)

    try:
        with closing(upload.read()) as every:
            good = (row for row in every if row.document and row.number >= begin and row.number not in left_out)
            while block := await upload.taken(lambda: _block(good)):
                if len(flying) == IN_FLIGHT:
                    await land()
                await retry_while_busy(lambda: in_thread(lambda: disk_quota.check(running.job.id)))
                flying.append(_Flying(library, running, block, upload.options))
        while flying:
            await land()
    finally:
        left = [block.adding for block in flying]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        running.stored_beyond(sum(block.documents for block in flying if block.stored))


def _block(rows: Iterator[Checked]) -> list[Checked]:
    block, characters = list[Checked](), 0
    for row in rows:
        block.append(row)
        characters += row.document.length if row.document else 0
        if len(block) == BLOCK_DOCUMENTS or characters >= BLOCK_CHARACTERS:
            break
    return block
