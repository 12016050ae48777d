"""The work of a large upload: every row is checked before any is kept, then they are embedded and stored in blocks."""

from __future__ import annotations

import asyncio
import uuid
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, takewhile
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from serving.errors import Invalid
from serving.ingest import Checked, Options, checked, names_within, rows
from serving.ingest.documents import empty, unrepeated
from serving.jobs import Running
from serving.jobs.patience import patiently
from serving.jobs.threads import in_thread
from serving.ports import Chunking
from serving.settings import Settings

if TYPE_CHECKING:
    from serving.corpora.library import Library
    from serving.corpora.room import Room
    from serving.encoders.embedder import Embedder

T = TypeVar("T")
BLOCK_DOCUMENTS, BLOCK_CHARACTERS = 256, 100_000
"""Of one commit."""
IN_FLIGHT = 6
"""Blocks at a time: some are embedded while others are read and committed. They take turns in the engine, and so end
nearly together: the first progress is told when so many are done."""
LOOKED_AT = 2000
"""Rows that are checked by a thread at a time."""


async def ingest(library: Library, settings: Settings, room: Room, job: Running) -> dict[str, Any]:
    """Store what was uploaded; see `Options` for what becomes of rows that are none. What is stored when there is no
    room left stays.

    With `on_error=fail` a bad row fails the job before anything is stored. Ids that rows lack come from the job, so
    what is done twice, after a restart, is there once.
    """
    upload = _Upload.of(job, settings)
    left_out = frozenset[int]()
    if job.position is None or upload.options.on_error == "skip":
        left_out = await _examine(job, upload)
    if job.position is None:
        await job.checkpoint(0, 0)
    await _store(library, room, job, upload, left_out)
    return {"count": job.done}


def check_fits(chunking: Chunking | None, embedder: Embedder) -> None:
    """Refuse passages that would be embedded in part.

    Raises:
        Invalid: `embedder` reads fewer tokens.
    """
    if chunking is None:
        return
    reading = embedder.reading
    if chunking.tokens > reading.document_length:
        behind = " behind its prompt for documents" if reading.document_length < reading.length else ""
        raise Invalid(f"the encoder of the corpus reads {reading.document_length} tokens{behind}", field="chunk_tokens")


@dataclass(frozen=True)
class _Upload:
    options: Options
    read: Callable[[], Generator[Checked]]
    """All rows, from the first, until `left` is set."""
    left: Event
    """Whoever waited for rows does so no more: a million that are only passed over take a quarter of a minute."""

    @classmethod
    def of(cls, job: Running, settings: Settings) -> _Upload:
        options, spool, left = Options.model_validate(job.options), job.spool, Event()
        assert spool is not None, "an upload has a spool until its job ends"

        def read() -> Generator[Checked]:
            with spool.open("rb") as file:
                every = checked(rows(file, options, settings), settings, names_within(uuid.UUID(job.id)))
                yield from takewhile(lambda _: not left.is_set(), every)

        return cls(options, read, left)

    async def taken(self, take: Callable[[], list[T]]) -> list[T]:
        """What a thread takes of rows that are read; whoever is cancelled leaves them."""
        return await in_thread(take, leave=self.left.set)


async def _examine(job: Running, upload: _Upload) -> frozenset[int]:
    """Count the good rows and name the bad; the numbers of those that have the id of one before them.

    Only a hash of each id is kept, 8 bytes, and the few that are there twice are looked at again.
    """
    job.forget_errors()
    hashes = array("q")

    def reject(row: Checked) -> None:
        if row.error:
            if upload.options.on_error == "fail":
                raise row.error
            job.error(row.place, row.error.message)

    with closing(upload.read()) as every:
        while block := await upload.taken(lambda: [_looked_at(row) for row in islice(every, LOOKED_AT)]):
            for row, named in block:
                reject(row)
                if named is not None:
                    hashes.append(named)
    kept, counts = np.unique(np.frombuffer(hashes, np.int64), return_counts=True)
    suspects = frozenset(kept[counts > 1].tolist())
    repeated = list[int]()
    if suspects:
        with closing(upload.read()) as every:
            again = unrepeated(row for row in every if row.document and hash(row.document.id) in suspects)
            while block := await upload.taken(lambda: [_looked_at(row) for row in islice(again, LOOKED_AT)]):
                for row, _ in block:
                    reject(row)
                    if row.error:
                        repeated.append(row.number)
    job.total = len(hashes) - len(repeated)
    if not hashes and not job.seen.error_count:
        raise empty()
    return frozenset(repeated)


def _looked_at(row: Checked) -> tuple[Checked, int | None]:
    """Without its document, and the hash of its id: the texts of as many rows may take gigabytes."""
    return row._replace(document=None), None if row.document is None else hash(row.document.id)


class _Flying:
    """A block on its way."""

    def __init__(self, library: Library, job: Running, rows: Sequence[Checked], chunking: Chunking | None) -> None:
        documents = [row.document for row in rows if row.document]
        self.documents = len(documents)
        self.following = rows[-1].number + 1
        """The row behind it."""
        self.stored = False
        """Also if it was cancelled too late."""
        self.adding = asyncio.create_task(
            patiently(lambda: library.add(job.corpus, documents, chunking, job=job.id, stored=self._land))
        )

    @property
    def ended_well(self) -> bool:
        return self.adding.done() and not self.adding.cancelled() and self.adding.exception() is None

    def _land(self) -> None:
        self.stored = True


async def _store(library: Library, room: Room, job: Running, upload: _Upload, left_out: frozenset[int]) -> None:
    """Everything beyond the job's position, which is the number of a row."""
    begin = job.position or 0
    flying = deque[_Flying]()

    async def land() -> None:
        """The first, and those behind it that have ended, too: a checkpoint waits for the disk, and serves them all."""
        await flying[0].adding
        documents = 0
        while flying and flying[0].ended_well:
            block = flying.popleft()
            job.result["truncated"] = job.result.get("truncated", 0) + block.adding.result().truncated
            documents += block.documents
            following = block.following
        await job.checkpoint(following, job.done + documents)

    try:
        with closing(upload.read()) as every:
            good = (row for row in every if row.document and row.number >= begin and row.number not in left_out)
            while block := await upload.taken(lambda: _block(good)):
                if len(flying) == IN_FLIGHT:
                    await land()
                await patiently(lambda: in_thread(lambda: room.check(job.id)))
                flying.append(_Flying(library, job, block, upload.options.chunking))
        while flying:
            await land()
    finally:
        left = [block.adding for block in flying]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        job.stored_beyond(sum(block.documents for block in flying if block.stored))


def _block(rows: Iterator[Checked]) -> list[Checked]:
    block, characters = list[Checked](), 0
    for row in rows:
        block.append(row)
        characters += len(row.document.text) if row.document else 0
        if len(block) == BLOCK_DOCUMENTS or characters >= BLOCK_CHARACTERS:
            break
    return block
