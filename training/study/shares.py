"""Subsets of a corpus, as in figure 5 of DCLR: the first sentences of a fixed shuffle."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path

from models.bundle.disk import write_whole
from training.corpus.corpus import open_corpus
from training.lock import locked

SHUFFLE = b"isosphere-share-0"
"""Hash key that fixes the order of sentences."""

READ_AT_ONCE = 4096


def share(files: Sequence[str], fraction: float, folder: Path, *, column: str | None = None) -> str:
    """Return the file with a share `fraction` of the distinct sentences. Write it into `folder` if needed.

    Sentences are ordered by a keyed hash of their text. So a smaller share is a subset of a larger one, and the result
    does not depend on the order of the corpus or on repeated sentences. At least one sentence is taken.

    Raises:
        CorpusError: the corpus can't be read.
    """
    with locked(folder, wait=True):
        corpus = open_corpus(files, column=column, held_out=0)
        written = folder / f"{fraction!r}-{corpus.census.digest[:12]}.txt"
        if not written.exists():
            batches = islice(corpus.batches(READ_AT_ONCE, seed=0), corpus.batches_per_epoch(READ_AT_ONCE))
            count = max(1, round(fraction * corpus.census.sentences))
            first = heapq.nsmallest(count, chain.from_iterable(batches), key=_place)
            write_whole(written, "".join(f"{sentence}\n" for sentence in first))
    return str(written)


def _place(sentence: str) -> bytes:
    return hashlib.blake2b(sentence.encode("utf-8"), digest_size=16, key=SHUFFLE).digest()
