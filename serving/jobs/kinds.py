"""Functions that do the work of each kind of job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from serving.corpora.disk_quota import DiskQuota
from serving.corpora.library import Library
from serving.corpora.snapshots import Progress, Snapshots
from serving.errors import Invalid, TooLarge
from serving.inference.encoders import Encoders
from serving.jobs import Job, Running, Work
from serving.jobs.adapting import Adaptations, adapted
from serving.jobs.ingestion import ingest
from serving.jobs.job import retry_while_busy
from serving.jobs.mapping import mapped
from serving.jobs.reembedding import reembed
from serving.jobs.upload_order import RESTORE, UPLOAD, UploadOrder
from serving.operations.limits import current_caller
from serving.operations.threads import CorpusThreads, in_thread
from serving.settings import Settings

T = TypeVar("T")
SNAPSHOT, REEMBED, MAP, ADAPT = "snapshot", "reembed", "map", "adapt"
CHANGE_NOTHING = (SNAPSHOT, MAP, ADAPT)
"""Kinds of jobs that may run at the same time as other jobs on the same corpus."""
ALONE = (ADAPT,)
"""Kinds of jobs of which only one runs at a time, because they take long and use several CPUs."""
ADDING = (UPLOAD, SNAPSHOT, RESTORE, MAP, ADAPT)
"""Kinds of jobs that add data to the disk, so they need room in the key's disk quota."""
PROGRESS_SECONDS = 1.0
"""Seconds between two reports of progress."""


@dataclass(frozen=True)
class JobKinds:
    """The work function of each kind of job, with everything that these functions need."""

    settings: Settings
    encoders: Encoders
    library: Library
    snapshots: Snapshots
    upload_order: UploadOrder
    disk_quota: DiskQuota
    mapping: CorpusThreads
    adapting: CorpusThreads
    adaptations: Adaptations

    def by_kind(self) -> Mapping[str, Work]:
        """Return the work function of each kind."""
        return {
            UPLOAD: self._upload,
            REEMBED: partial(reembed, self.library, self.encoders),
            SNAPSHOT: self._snapshot,
            RESTORE: self._restore,
            MAP: self._map,
            ADAPT: self._adapt,
        }

    def accept(self, job: Job) -> None:
        """Check whether there is room for the data that a job adds. Record the acceptance of an upload in its corpus.

        Call this before the client learns that its job is accepted. This call blocks.

        Raises:
            NotFound: the corpus of an upload does not exist.
            InsufficientStorage: the disk is full, or the disk quota of the API key is used up.
            Unhealthy: the disk fails.
            Conflict: the job adapts an encoder, and the server already keeps the maximum number of adapted encoders
                for the corpus.
        """
        if job.kind in ADDING:
            self.disk_quota.check(job.id)
        if job.kind == ADAPT:
            self.adaptations.check_room(job)
        self.upload_order.accept(job)

    def ended(self, job: Job) -> None:
        """Delete data that a job needed only while it ran. This call blocks."""
        self.upload_order.release(job)
        self.adaptations.discard(job)

    async def _begun(self, running: Running) -> None:
        """Check the disk quota again when a job starts, because earlier jobs may have filled the quota.

        If the quota is full, the job fails. It does not wait, because a waiting job would delay other jobs.
        """
        await retry_while_busy(lambda: in_thread(lambda: self.disk_quota.check(running.job.id)))

    async def _followed(self, running: Running, work: Callable[[Progress], T]) -> T:
        """Run blocking work on the job's corpus, and report its progress."""
        async with reporting_progress(running) as progress:
            return await self.library.run(
                lambda _: progress.run(lambda: work(progress)), of=running.job.corpus, on_cancel=progress.leave
            )

    async def _upload(self, running: Running) -> dict[str, Any]:
        """Store the documents of the upload.

        Before that, record in the corpus again that the upload was accepted. The record is missing if the corpus was
        restored after the upload was accepted, or if the corpus was damaged when the server started.
        """
        await retry_while_busy(
            lambda: self.library.run(lambda _: self.upload_order.accept(running.job), of=running.job.corpus)
        )
        return await ingest(self.library, self.settings, self.disk_quota, running)

    async def _snapshot(self, running: Running) -> dict[str, Any]:
        await self._begun(running)
        return asdict(await self._followed(running, partial(self.snapshots.create, running.job.corpus)))

    async def _map(self, running: Running) -> dict[str, Any]:
        """Compute a map of the job's corpus, and store this map.

        The previous map is served until the new map is complete. After a restart, the computation starts from the
        beginning.
        """
        await self._begun(running)
        name, corpora = running.job.corpus, self.library.corpora
        async with reporting_progress(running) as progress:
            found, generation = await self.mapping.stoppable("", lambda: mapped(corpora, name, progress), charged=True)
        await retry_while_busy(lambda: self.library.run(lambda _: corpora.keep_map(name, found, generation), of=name))
        return {"points": len(found.keys), "passages": found.origin.passages}

    async def _adapt(self, running: Running) -> dict[str, Any]:
        """Adapt an encoder to the corpus's texts, and keep the new encoder if it is better."""
        await self._begun(running)
        await in_thread(lambda: self.adaptations.check_room(running.job))
        served, corpora = self.encoders.named(running.job.options["model"]), self.library.corpora
        async with reporting_progress(running) as progress:
            work = partial(adapted, corpora, served, self.adaptations, running.job, progress)
            return await self.adapting.stoppable("", work, charged=True)

    async def _restore(self, running: Running) -> dict[str, Any]:
        """Restore a corpus from an uploaded snapshot, or from a snapshot on the server."""
        name = running.job.corpus
        file = running.spool or self.snapshots.path(running.job.options["of"], running.job.options["snapshot"])
        try:
            unpacked = await in_thread(lambda: self.snapshots.restored_bytes(file))
            await retry_while_busy(lambda: in_thread(lambda: self.disk_quota.check(running.job.id, name, unpacked)))
            await self._followed(running, partial(self.snapshots.restore, name, file))
        except (Invalid, TooLarge) as error:
            if running.spool:
                raise
            message = f"{file.name}: {error.message.removeprefix('snapshot: ')}"
            raise type(error)(message, field="snapshot") from error
        corpus, size = await self.library.run(lambda corpora: corpora.corpus(name), of=name)
        return {"documents": size.documents, "passages": size.passages, "fingerprint": corpus.fingerprint}


@asynccontextmanager
async def reporting_progress(running: Running) -> AsyncIterator[Progress]:
    """Yield a `Progress` for work in a thread, and report the values of this object as the progress of the job."""
    progress = Progress(current_caller())

    async def report() -> None:
        running.total = progress.documents
        await running.report(progress.done)

    async def follow() -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            await report()

    following = asyncio.create_task(follow())
    try:
        yield progress
    finally:
        following.cancel()
        await asyncio.wait([following])
    await report()
