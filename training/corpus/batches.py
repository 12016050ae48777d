"""Batches made ready while the last one trains: read, shuffled and tokenised on a thread of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from models.encoder import Encoder
from models.tokenizer import Tokens

AHEAD = 4
"""Batches waiting at most."""

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Sentences of one step, and the tokens of those that this process encodes."""

    sentences: Sequence[str]
    """The whole batch, on every process the same."""
    own: range
    """Those of this process."""
    tokens: Sequence[Tokens]
    teacher_tokens: Sequence[Tokens] | None = None
    """In the teacher's vocabulary; None without a teacher."""

    @property
    def token_count(self) -> int:
        """Of one view of this process's sentences."""
        return sum(map(len, self.tokens))


def tokeniser(
    encoder: Encoder, teacher: Encoder | None, *, max_length: int, own: Callable[[int], range]
) -> Callable[[Sequence[str]], Batch]:
    """Sentences to batch, each cut to `max_length` tokens or to its encoder's own limit if that is less.

    `own` says which rows of a batch of so many sentences are this process's.
    """

    def tokens(of: Encoder, sentences: Sequence[str]) -> Sequence[Tokens]:
        return of.tokenizer.encode(sentences, max_length=min(max_length, of.max_length))

    def batch(sentences: Sequence[str]) -> Batch:
        rows = own(len(sentences))
        mine = [sentences[i] for i in rows]
        return Batch(sentences, rows, tokens(encoder, mine), tokens(teacher, mine) if teacher else None)

    return batch


def ahead(items: Iterator[T], *, depth: int = AHEAD) -> Generator[T, None, None]:
    """The same items in the same order, up to `depth` of them computed before they are asked for.

    What `items` raises is raised where the item was due.
    """
    end = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as thread:
        waiting = deque(thread.submit(next, items, end) for _ in range(depth))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(thread.submit(next, items, end))
            yield item  # type: ignore[misc]  # `end` alone is no T
