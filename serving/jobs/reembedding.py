"""Re-embedding of a corpus with another encoder. Searches use the old vectors until all new vectors are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from serving.corpora.library import Library, embed_passages
from serving.corpora.values import Corpus, PassageKey
from serving.errors import Conflict
from serving.inference.embedder import Embedder
from serving.inference.encoders import Encoders
from serving.jobs import Running
from serving.jobs.job import retry_while_busy

BLOCK = 512
"""Number of passages between two checkpoints."""


async def reembed(library: Library, encoders: Encoders, running: Running) -> dict[str, Any]:
    """Embed a corpus with the encoder that the job's option `model` names, and then replace the corpus's vectors.

    Return the encoder's `fingerprint` and name (`model`), and the number of `truncated` passages. Without the option
    `model`, the default encoder is used. Documents that are written meanwhile are also embedded before the vectors are
    replaced. After a restart, the job embeds only passages that have no new vector. If the encoder's bundle is replaced
    meanwhile, the job starts again with the new bundle.

    Raises:
        NotFound: the encoder or the corpus is unknown.
        Conflict: callers computed the corpus's vectors, and the job's option `replace_own_vectors` is not set.
    """
    while True:
        with encoders.corpus_encoder(running.job.options.get("model")).ready_embedder.held() as embedder:
            fingerprint = embedder.manifest.fingerprint
            truncated = await _moved(library, encoders, running, embedder)
            if truncated is not None and fingerprint in encoders.fingerprints:
                await running.checkpoint(0, running.total or 0)  # needed even if no passage had to be embedded
                return {"fingerprint": fingerprint, "model": embedder.manifest.name, "truncated": truncated}
        await running.checkpoint(0, 0)


def check_replaced(corpus: Corpus, options: Mapping[str, Any]) -> None:
    """Check whether a job with these options may replace the corpus's vectors.

    Raises:
        Conflict: the vectors were supplied by callers instead of computed by the server, and the option
            `replace_own_vectors` is not set.
    """
    if corpus.own_vectors and not options.get("replace_own_vectors"):
        raise Conflict(
            f"callers computed the vectors of corpus {corpus.name!r}, and the server can't compute them again: send "
            '{"replace_own_vectors": true} to replace them'
        )


async def _moved(library: Library, encoders: Encoders, running: Running, embedder: Embedder) -> int | None:
    """Embed all passages, and replace the corpus's vectors. Return the number of truncated passages.

    If the encoder is no longer served, keep the old vectors and return None.
    """
    name, fingerprint = running.job.corpus, embedder.manifest.fingerprint
    corpus, size = await library.run(lambda corpora: corpora.corpus(name), of=name)
    check_replaced(corpus, running.job.options)  # an earlier job may have restored a corpus with other vectors
    running.total = size.passages
    truncated = await _embedded(library, encoders, running, embedder)
    beside = await library.stoppable(lambda corpora: corpora.read_fresh(name), of=name)
    try:
        while fingerprint in encoders.fingerprints:
            if await library.run(lambda corpora: corpora.swap(name, fingerprint, beside), of=name):
                return truncated
            # Embed documents that were written meanwhile.
            truncated += await _embedded(library, encoders, running, embedder)
    finally:
        if beside:
            await asyncio.to_thread(beside.discard)
    return None


async def _embedded(library: Library, encoders: Encoders, running: Running, embedder: Embedder) -> int:
    """Embed all passages that have no vector of the new encoder yet. Return the number of truncated passages."""
    name, fingerprint, truncated = running.job.corpus, embedder.manifest.fingerprint, 0
    while fingerprint in encoders.fingerprints:
        if not (rows := await library.run(lambda corpora: corpora.stale(name, fingerprint, BLOCK), of=name)):
            break
        truncated += await retry_while_busy(partial(_refresh, library, name, embedder, rows))
        await running.checkpoint(0, min(running.job.done + len(rows), running.total or 0))
    return truncated


async def _refresh(library: Library, name: str, embedder: Embedder, rows: Sequence[tuple[PassageKey, str]]) -> int:
    """Embed passages, and store their vectors. Return the number of truncated passages."""
    keys = [key for key, _ in rows]
    vectors, cut = await embed_passages(embedder, [text for _, text in rows], lambda i: f"passage {keys[i]}")
    fingerprint = embedder.manifest.fingerprint
    await library.run(lambda corpora: corpora.refresh(name, fingerprint, keys, vectors), of=name)
    return cut
