"""A library that only remembers, and the jobs of uploads around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from serving.corpora.corpora import Corpora
from serving.corpora.disk_quota import DiskQuota
from serving.corpora.ingest.uploading import Options
from serving.corpora.ingest.vectors import VectorRule
from serving.corpora.library import Library as Served
from serving.corpora.library import UploadResult
from serving.corpora.values import Chunking, Document
from serving.jobs import Job, Jobs
from serving.jobs.ingestion import ingest
from serving.operations.context import BULK
from serving.settings import Settings


class Library:
    """Takes documents; `fails` may raise before the block of that number is kept."""

    def __init__(
        self, fails: Callable[[int], None] = lambda _: None, *, keeps: bool = True, seconds: float = 0.001
    ) -> None:
        self.documents: dict[str, Document] = {}
        self.blocks = self.at_once = self.most = self.count = 0
        self.chunkings: set[Chunking | None] = set()
        self._fails, self._keeps, self._seconds = fails, keeps, seconds

    async def vector_rule(self, corpus: str) -> VectorRule:
        return VectorRule(corpus, own=False)

    async def add(
        self,
        corpus: str,
        documents: Sequence[Document],
        chunking: Chunking | None = None,
        *,
        embedded_by: str = "",
        job: str,
        after_commit: Callable[[], None],
    ) -> UploadResult:
        """Cancelled, every other block is kept all the same: too late."""
        assert BULK.get() and job
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.chunkings.add(chunking)
        number, self.blocks = self.blocks, self.blocks + 1
        try:
            await asyncio.sleep(self._seconds)
            self._fails(number)
        except asyncio.CancelledError:
            if number % 2:
                self._keep(documents, after_commit)
            raise
        finally:
            self.at_once -= 1
        self._keep(documents, after_commit)
        return UploadResult(1, len(documents))

    def _keep(self, documents: Sequence[Document], after_commit: Callable[[], None]) -> None:
        self.count += len(documents)
        if self._keeps:
            self.documents |= {document.id: document for document in documents}
        after_commit()


def jobs_around(folder: Path, library: Library) -> Jobs:
    room = DiskQuota(cast("Corpora", library), (), lambda *_: 0, lambda _: 0)
    return Jobs(folder, {"ingest": partial(ingest, cast("Served", library), Settings(data=folder), room)})


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(300):
            await work()

    asyncio.run(main())


async def submitted(jobs: Jobs, body: bytes, **options: Any) -> Job:
    chosen = Options.model_validate({"format": "ndjson", **options})
    async with jobs.spool() as spool:
        await spool.write(body)
        return await jobs.submit("ingest", "c", chosen.model_dump(), spool=spool)


async def state(jobs: Jobs, id: str, wanted: Callable[[Job], object]) -> Job:
    while not wanted(job := await jobs.job(id)):
        await asyncio.sleep(0.002)
    return job


def ingested(folder: Path, library: Library, body: bytes, **options: Any) -> Job:
    found: list[Job] = []

    async def work() -> None:
        jobs = jobs_around(folder, library)
        jobs.start()
        job = await submitted(jobs, body, **options)
        found.append(await state(jobs, job.id, lambda job: job.ended))
        await jobs.stop()
        jobs.close()

    run(work)
    return found[0]


def lines(count: int, start: int = 0) -> bytes:
    return b"".join(
        json.dumps({"id": f"d{i}", "text": f"text {i}"}).encode() + b"\n" for i in range(start, start + count)
    )
