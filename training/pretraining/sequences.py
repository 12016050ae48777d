"""A corpus as sequences of one length: tokenised sentences laid end to end, then cut.

Nothing is padded, and nothing is left out: a sentence that a cut goes through continues in the next sequence, and what
is left over at the end of an epoch begins the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.tokenizer import Tokens
from training.corpus.corpus import Corpus

BLOCK = 1024
"""Sentences tokenised at once."""

Ids = NDArray[np.int64]


class Position(NamedTuple):
    """Where a reader of the corpus stands: between two tokens of its order."""

    block: int = 0
    """Of so many sentences, counted over all epochs."""
    token: int = 0
    """Of the block."""


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
    """Batches (rows, length) of the shuffled corpus without end, each with where the next one begins.

    From `start` on they are those that a reader who came there would have got.
    """
    blocks = (end_to_end(encode(each)) for each in corpus.batches(BLOCK, seed=seed, start=start.block))
    return cut(blocks, rows=rows, length=length, start=start)


def end_to_end(sentences: Sequence[Tokens]) -> Ids:
    """(T,) the tokens of all sentences, special ones included, one sentence after the other."""
    return np.concatenate([sentence.ids for sentence in sentences])


def cut(blocks: Iterable[Ids], *, rows: int, length: int, start: Position) -> Iterator[tuple[Ids, Position]]:
    """`blocks`, (T,) each and the first of them that of `start`, cut to (rows, length); what is left is not given."""
    waiting: deque[Ids] = deque()
    at = start
    for ids in blocks:
        waiting.append(ids)
        while sum(map(len, waiting)) - at.token >= rows * length:
            batch = np.concatenate(waiting)[at.token : at.token + rows * length]
            at = _passed(waiting, Position(at.block, at.token + rows * length))
            yield batch.reshape(rows, length), at


def _passed(waiting: deque[Ids], at: Position) -> Position:
    """The same position told by its own block; those before it are waiting no more."""
    while waiting and at.token >= len(waiting[0]):
        at = Position(at.block + 1, at.token - len(waiting.popleft()))
    return at


def parts(ids: Ids, cls: int) -> list[int]:
    """The lengths of the sentences, or parts of one, that lie in sequences (N, L), each beginning with `cls`."""
    begins = ids == cls
    begins[:, 0] = True
    ends: list[int] = np.append(np.flatnonzero(begins), ids.size).tolist()
    return [end - begin for begin, end in pairwise(ends)]
