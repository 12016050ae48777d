"""Re-embedding: a corpus moves to another encoder while it goes on serving with the one it has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from serving.corpora.library import Library, embed_passages
from serving.encoders.embedder import Embedder
from serving.encoders.encoders import Encoders
from serving.jobs import Running
from serving.jobs.patience import patiently

BLOCK = 512
"""Passages between two checkpoints."""


async def reembed(library: Library, encoders: Encoders, job: Running) -> dict[str, Any]:
    """Embed what is stored with the encoder `model` of the job's options, beside what serves; swap when whole.

    Documents that are written meanwhile are embedded as well before the swap. After a restart it goes on with what is
    missing: the store knows. If another bundle takes the encoder's place meanwhile it begins anew, with that one.
    """
    while True:
        with encoders.asked_for(job.options.get("model")).at_work.held() as embedder:
            fingerprint = embedder.manifest.fingerprint
            truncated = await _moved(library, encoders, job, embedder)
            if truncated is not None and fingerprint in encoders.fingerprints:
                await job.checkpoint(0, job.total or 0)  # also where there was nothing to do, or less by now
                return {"fingerprint": fingerprint, "model": embedder.manifest.name, "truncated": truncated}
        await job.checkpoint(0, 0)


async def _moved(library: Library, encoders: Encoders, job: Running, embedder: Embedder) -> int | None:
    """How many passages were cut to the model's length; None when the encoder is not served any more, and no swap."""
    name, fingerprint = job.corpus, embedder.manifest.fingerprint
    _, size = await library.on(lambda corpora: corpora.corpus(name), of=name)
    job.total = size.passages
    truncated = await _embedded(library, encoders, job, embedder)
    beside = await library.stoppable(lambda corpora: corpora.read_fresh(name), of=name)
    try:
        while fingerprint in encoders.fingerprints:
            if await library.on(lambda corpora: corpora.swap(name, fingerprint, beside), of=name):
                return truncated
            truncated += await _embedded(library, encoders, job, embedder)  # of what was written meanwhile
    finally:
        if beside:
            await asyncio.to_thread(beside.discard)
    return None


async def _embedded(library: Library, encoders: Encoders, job: Running, embedder: Embedder) -> int:
    """All that has no vector of the new encoder; how many were cut to the model's length."""
    name, fingerprint, truncated = job.corpus, embedder.manifest.fingerprint, 0
    while fingerprint in encoders.fingerprints:
        if not (rows := await library.on(lambda corpora: corpora.stale(name, fingerprint, BLOCK), of=name)):
            break
        truncated += await patiently(partial(_refresh, library, name, embedder, rows))
        await job.checkpoint(0, min(job.done + len(rows), job.total or 0))
    return truncated


async def _refresh(library: Library, name: str, embedder: Embedder, rows: Sequence[tuple[int, str]]) -> int:
    """How many were cut to the model's length."""
    keys = [key for key, _ in rows]
    vectors, cut = await embed_passages(embedder, [text for _, text in rows], lambda i: f"passage {keys[i]}")
    fingerprint = embedder.manifest.fingerprint
    await library.on(lambda corpora: corpora.refresh(name, fingerprint, keys, vectors), of=name)
    return cut
