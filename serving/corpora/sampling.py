"""Random samples of a corpus's passages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from serving.filters import reach
from serving.ports import Floats, Passage, Store

SEED = 0
"""Seed that makes samples of the same corpus identical."""
READ_TOGETHER = 64
"""Passages whose documents are in memory at a time, because each document is read whole."""
EXCERPT = 200
"""Maximum characters of a passage in a sample."""


class Sampled(NamedTuple):
    """A passage of a sample, shortened."""

    document: str
    """The id of its document."""
    excerpt: str
    value: object
    """The value of the requested field; None if there is none."""


class Sample(NamedTuple):
    """Passages in the order in which they were written, their (n, D) vectors, and the number of all passages."""

    passages: list[Sampled]
    vectors: Floats
    of: int


def sampled(store: Store, name: str, size: int, field: str | None = None) -> Sample:
    """Return up to `size` passages of the corpus `name`, uniformly drawn, each with its value of `field`.

    If the corpus is embedded again meanwhile, sampling starts again, so that all vectors are of one encoder.
    """
    while True:
        before, keys = _version(store, name), store.keys(name)
        drawn = np.random.default_rng(SEED).choice(keys, min(size, len(keys)), replace=False)
        rows = {
            int(key): vector
            for some, vectors in store.vectors(name, drawn.tolist())
            for key, vector in zip(some, vectors, strict=True)
        }
        told = dict(_told(store, name, list(rows), field))
        if _version(store, name) == before:
            kept = [rows[key] for key in told]
            return Sample(list(told.values()), np.stack(kept) if kept else np.empty((0, 0), np.float32), len(keys))


def _version(store: Store, name: str) -> tuple[str, str | None]:
    corpus = store.corpus(name)
    return corpus.generation, corpus.fingerprint


def _told(store: Store, name: str, keys: Sequence[int], field: str | None) -> Iterator[tuple[int, Sampled]]:
    """Yield the passages of the sorted `keys` that still exist."""
    for start in range(0, len(keys), READ_TOGETHER):
        for key, passage in sorted(store.passages(name, keys[start : start + READ_TOGETHER]).items()):
            document = passage.document
            value = next(reach(document.metadata, field), None) if field else None
            yield key, Sampled(document.id, _excerpt(passage), value)


def _excerpt(passage: Passage) -> str:
    text, (start, end) = passage.document.text, passage.span or (0, len(passage.document.text))
    return text[start:end] if end - start <= EXCERPT else f"{text[start : start + EXCERPT - 1]}…"
