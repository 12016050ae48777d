"""What jobs do, by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.acceptance import RESTORE, UPLOAD
from serving.errors import Invalid, TooLarge
from serving.ingestion import ingest
from serving.jobs import Running, Work
from serving.patience import patiently
from serving.progress import told
from serving.reembedding import reembed

if TYPE_CHECKING:
    from serving.service import Service

CHANGE_NOTHING = ("snapshot",)
"""Kinds that run beside other jobs of their corpus."""


def works(service: Service) -> Mapping[str, Work]:
    """Every kind of job that a service does."""
    return {
        UPLOAD: partial(_upload, service),
        "reembed": partial(reembed, service.library, service.encoders),
        "snapshot": partial(_snapshot, service),
        RESTORE: partial(_restore, service),
    }


async def _upload(service: Service, job: Running) -> dict[str, Any]:
    """Its corpus may not have known of it: it could not be opened at the start, or was damaged and restored since."""
    await patiently(lambda: service.library.on(lambda _: service.acceptance.accept(job.job), of=job.corpus))
    return await ingest(service, job)


async def _snapshot(service: Service, job: Running) -> dict[str, Any]:
    async with told(job) as progress:
        made = await service.library.on(
            lambda _: service.snapshots.create(job.corpus, progress), of=job.corpus, leave=progress.leave
        )
    return asdict(made)


async def _restore(service: Service, job: Running) -> dict[str, Any]:
    """From what was uploaded, or from one of the server's own snapshots."""
    name = job.corpus
    file = job.spool or service.snapshots.path(job.options["of"], job.options["snapshot"])
    with nullcontext() if job.spool else _naming(file):
        async with told(job) as progress:
            await service.library.on(
                lambda _: service.snapshots.restore(name, file, progress), of=name, leave=progress.leave
            )
    corpus, size = await service.library.on(lambda corpora: corpora.corpus(name), of=name)
    return {"documents": size.documents, "passages": size.passages, "fingerprint": corpus.fingerprint}


@contextmanager
def _naming(snapshot: Path) -> Iterator[None]:
    """What is wrong with one of the server's own is said with its name."""
    try:
        yield
    except (Invalid, TooLarge) as error:
        raise type(error)(f"{snapshot.name}: {error.message.removeprefix('snapshot: ')}", field="snapshot") from error
