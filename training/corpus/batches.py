"""Batches made ready while the last one trains: read, shuffled and tokenised on a thread of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar

from models.encoder import Encoder
from models.tokenizer import Tokens
from training.corpus.positives import Positives

AHEAD = 4
"""Batches waiting at most."""

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Sentences, or passages, of one step, and the tokens of those that this process encodes."""

    sentences: Sequence[str]
    """The whole batch, on every process the same."""
    own: range
    """Those of this process."""
    tokens: Sequence[Tokens]
    teacher_tokens: Sequence[Tokens] | None = None
    """In the teacher's vocabulary; None without a teacher."""
    first_tokens: Sequence[Tokens] | None = None
    """Of the first view, where it has another text than `tokens`."""

    def lengths(self, views: int) -> list[int]:
        """Tokens of this process's sentences in all of so many views."""
        first = self.tokens if self.first_tokens is None else self.first_tokens
        return [*map(len, first), *[len(each) for each in self.tokens] * (views - 1)]


class Tokenise(Protocol):
    """Makes a batch of sentences."""

    def __call__(self, sentences: Sequence[str], step: int = 0) -> Batch:
        """Positive pairs are drawn anew at each step, and are the same where a step is repeated."""


def tokeniser(
    encoder: Encoder,
    teacher: Encoder | None,
    *,
    max_length: int,
    own: Callable[[int], range],
    positives: Positives | None = None,
    seed: int = 0,
) -> Tokenise:
    """Sentences to batch, each cut to `max_length` tokens or to its encoder's own limit if that is less.

    `own` says which rows of a batch of so many sentences are this process's. With `positives` the sentences are
    passages, the first view has another text than the others, and a teacher is given that of the others.
    """

    def tokens(of: Encoder, sentences: Sequence[str]) -> Sequence[Tokens]:
        return of.tokenizer.encode(sentences, max_length=min(max_length, of.max_length))

    def batch(sentences: Sequence[str], step: int = 0) -> Batch:
        rows = own(len(sentences))
        firsts, texts = None, [sentences[i] for i in rows]
        if positives:
            draw = Random(f"{seed}/{step}")
            pairs = [positives(passage, draw) for passage in sentences]  # those of other processes, too: one generator
            firsts, texts = [pairs[i][0] for i in rows], [pairs[i][1] for i in rows]
        return Batch(
            sentences,
            rows,
            tokens(encoder, texts),
            tokens(teacher, texts) if teacher else None,
            tokens(encoder, firsts) if firsts is not None else None,
        )

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
