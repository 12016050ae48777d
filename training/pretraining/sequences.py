"""A corpus as sequences of equal length: tokenised sentences are concatenated, then cut.

There is no padding, and no token is lost. A sentence that is cut continues in the next sequence, and the rest of an
epoch begins the next epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.bundle.tokenizer import Tokens
from training.corpus.corpus import Corpus

BLOCK = 1024
"""Sentences tokenised at once."""

Ids = NDArray[np.int64]


class Position(NamedTuple):
    """A position of a reader in the corpus, between two tokens."""

    block: int = 0
    """Number of the block, counted over all epochs."""
    token: int = 0
    """Token in the block."""


START = Position()


def sequences(
    corpus: Corpus,
    encode: Callable[[Sequence[str]], Sequence[Tokens]],
    *,
    rows: int,
    length: int,
    seed: int,
    start: Position,
) -> Iterator[tuple[Ids, Position]]:
    """Yield batches (rows, length) of the shuffled corpus endlessly, each with the position of the next one.

    Batches from `start` equal those of a reader that has reached this position.
    """
    blocks = (end_to_end(encode(each)) for each in corpus.batches(BLOCK, seed=seed, start=start.block))
    return cut(blocks, rows=rows, length=length, start=start)


def end_to_end(sentences: Sequence[Tokens]) -> Ids:
    """Concatenate the tokens of all sentences, special ones included, to (T,)."""
    return np.concatenate([sentence.ids for sentence in sentences])


def cut(blocks: Iterable[Ids], *, rows: int, length: int, start: Position) -> Iterator[tuple[Ids, Position]]:
    """Cut `blocks`, (T,) each and the first at `start`, to (rows, length). The rest is dropped."""
    waiting: deque[Ids] = deque()
    at = start
    for ids in blocks:
        waiting.append(ids)
        while sum(map(len, waiting)) - at.token >= rows * length:
            batch = np.concatenate(waiting)[at.token : at.token + rows * length]
            at = _passed(waiting, Position(at.block, at.token + rows * length))
            yield batch.reshape(rows, length), at


def _passed(waiting: deque[Ids], at: Position) -> Position:
    """Express the position in its own block, and drop the blocks before it."""
    while waiting and at.token >= len(waiting[0]):
        at = Position(at.block + 1, at.token - len(waiting.popleft()))
    return at


def parts(ids: Ids, cls: int) -> list[int]:
    """Return the lengths of the sentences, or parts of sentences, in sequences (N, L). Each begins with `cls`."""
    begins = ids == cls
    begins[:, 0] = True
    ends: list[int] = np.append(np.flatnonzero(begins), ids.size).tolist()
    return [end - begin for begin, end in pairwise(ends)]
