"""Some passages of a corpus, in place of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from serving.filters import reach
from serving.ports import Floats, Passage, Store

SEED = 0
"""The same corpus gives the same passages every time."""
READ_TOGETHER = 64
"""Passages whose documents are in memory at a time: each is read whole."""
EXCERPT = 200
"""Characters of a passage that are kept."""


class Sampled(NamedTuple):
    """A passage, told of in short."""

    document: str
    """Its id."""
    excerpt: str
    value: object
    """What stands in the field that was asked for; None where nothing does."""


class Sample(NamedTuple):
    """Passages in the order in which they were written, the (n, D) vectors they have, and how many there are in all."""

    passages: list[Sampled]
    vectors: Floats
    of: int


def sampled(store: Store, name: str, size: int, field: str | None = None) -> Sample:
    """Up to `size` passages of the corpus `name`, each as likely as any other, with what stands in `field`.

    It begins anew where the corpus is given other vectors meanwhile: all are of one encoder.
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
    """Those of the sorted `keys` that are still there."""
    for start in range(0, len(keys), READ_TOGETHER):
        for key, passage in sorted(store.passages(name, keys[start : start + READ_TOGETHER]).items()):
            document = passage.document
            value = next(reach(document.metadata, field), None) if field else None
            yield key, Sampled(document.id, _excerpt(passage), value)


def _excerpt(passage: Passage) -> str:
    text, (start, end) = passage.document.text, passage.span or (0, len(passage.document.text))
    return text[start:end] if end - start <= EXCERPT else f"{text[start : start + EXCERPT - 1]}…"
