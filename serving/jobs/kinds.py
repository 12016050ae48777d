"""Work functions of jobs by kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from serving.corpora.disk_quota import DiskQuota
from serving.corpora.library import Library
from serving.corpora.snapshots import Progress, Snapshots
from serving.errors import Invalid, TooLarge
from serving.inference.encoders import Encoders
from serving.jobs import Job, Running, Work
from serving.jobs.ingestion import ingest
from serving.jobs.patience import retry_while_busy
from serving.jobs.reembedding import reembed
from serving.jobs.upload_order import RESTORE, UPLOAD, UploadOrder
from serving.operations.threads import in_thread
from serving.settings import Settings

SNAPSHOT, REEMBED = "snapshot", "reembed"
CHANGE_NOTHING = (SNAPSHOT,)
"""Kinds that run beside other jobs of their corpus."""
ADDING = (UPLOAD, SNAPSHOT, RESTORE)
"""Kinds that add data to the disk, for which the key's corpora must have room."""
PROGRESS_SECONDS = 1.0
"""Seconds between two reports of progress."""


@dataclass(frozen=True)
class JobKinds:
    """Dependencies of a server's jobs, and the work function of each kind."""

    settings: Settings
    encoders: Encoders
    library: Library
    snapshots: Snapshots
    upload_order: UploadOrder
    disk_quota: DiskQuota

    def by_kind(self) -> Mapping[str, Work]:
        """Return the work function of each kind."""
        return {
            UPLOAD: self._upload,
            REEMBED: partial(reembed, self.library, self.encoders),
            SNAPSHOT: self._snapshot,
            RESTORE: self._restore,
        }

    def accept(self, job: Job) -> None:
        """Check the room and record a job, before anyone learns that it will be done. Blocking.

        Raises:
            NotFound: the corpus does not exist.
            InsufficientStorage, Unhealthy: the disk fails, or the key's corpora have used up their share of it.
        """
        if job.kind in ADDING:
            self.disk_quota.check(job.id)
        self.upload_order.accept(job)

    async def _begun(self, job: Running) -> None:
        """Check the room again, since earlier jobs may have taken it. Waiting for room would delay other jobs."""
        await retry_while_busy(lambda: in_thread(lambda: self.disk_quota.check(job.id)))

    async def _upload(self, job: Running) -> dict[str, Any]:
        """Record the acceptance again. A corpus lacks it if it was not opened at the start, or was restored."""
        await retry_while_busy(lambda: self.library.on(lambda _: self.upload_order.accept(job.job), of=job.corpus))
        return await ingest(self.library, self.settings, self.disk_quota, job)

    async def _snapshot(self, job: Running) -> dict[str, Any]:
        await self._begun(job)
        async with reporting_progress(job) as progress:
            made = await self.library.on(
                lambda _: self.snapshots.create(job.corpus, progress), of=job.corpus, on_cancel=progress.leave
            )
        return asdict(made)

    async def _restore(self, job: Running) -> dict[str, Any]:
        """Restore from the upload, or from a snapshot of the server."""
        name = job.corpus
        file = job.spool or self.snapshots.path(job.options["of"], job.options["snapshot"])
        with nullcontext() if job.spool else _naming(file):
            unpacked = await in_thread(lambda: self.snapshots.restored_bytes(file))
            await retry_while_busy(lambda: in_thread(lambda: self.disk_quota.check_restored(name, unpacked, job.id)))
            async with reporting_progress(job) as progress:
                await self.library.on(
                    lambda _: self.snapshots.restore(name, file, progress), of=name, on_cancel=progress.leave
                )
        corpus, size = await self.library.on(lambda corpora: corpora.corpus(name), of=name)
        return {"documents": size.documents, "passages": size.passages, "fingerprint": corpus.fingerprint}


@contextmanager
def _naming(snapshot: Path) -> Iterator[None]:
    """Add the name of a server's own snapshot to its errors."""
    try:
        yield
    except (Invalid, TooLarge) as error:
        raise type(error)(f"{snapshot.name}: {error.message.removeprefix('snapshot: ')}", field="snapshot") from error


@asynccontextmanager
async def reporting_progress(job: Running) -> AsyncIterator[Progress]:
    """Yield a `Progress` for work in a thread, and report it as the progress of `job`."""
    progress = Progress()

    async def report() -> None:
        job.total = progress.documents
        await job.report(progress.done)

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
