"""Background preparation of batches: a thread reads, shuffles and tokenises during training."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from models.bundle.tokenizer import Tokens
from models.encoder.encoder import Encoder
from training.data.positives import Positives

AHEAD = 4
"""Maximum number of batches that are prepared in advance."""

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Sentences or passages of one step, with the tokens of those that this process encodes."""

    sentences: Sequence[str]
    """Sentences or passages of the whole batch, which are the same on every process."""
    own: range
    """Rows of the batch that this process encodes."""
    tokens: Sequence[Tokens]
    teacher_tokens: Sequence[Tokens] | None = None
    """Tokens in the teacher's vocabulary. None without a teacher."""
    first_tokens: Sequence[Tokens] | None = None
    """Tokens of the first view, if its texts differ from those of `tokens`."""

    def __len__(self) -> int:
        return len(self.sentences)

    def lengths(self, views: int) -> list[int]:
        """Return the length in tokens of each view of each sentence that this process encodes.

        `views` is the number of views of a sentence.
        """
        first = self.tokens if self.first_tokens is None else self.first_tokens
        return [*map(len, first), *[len(each) for each in self.tokens] * (views - 1)]


@dataclass(frozen=True)
class Tokeniser:
    """A function that tokenises sentences into batches.

    Texts are truncated to `max_length` tokens or to the encoder's own limit, whichever is smaller.
    """

    encoder: Encoder
    teacher: Encoder | None
    max_length: int
    own: Callable[[int], range]
    """Function from the size of a batch to the rows of this process."""
    positives: Positives | None = None
    """If given, the sentences are passages.

    The first view has the first text of a positive pair. The remaining views and the teacher have the second text.
    """
    seed: int = 0

    def __call__(self, sentences: Sequence[str], step: int = 0) -> Batch:
        """Return the batch of a step.

        Positive pairs are drawn from a generator that depends only on `seed` and `step`, so a repeated step has the
        same pairs.
        """
        rows = self.own(len(sentences))
        firsts, texts = None, [sentences[i] for i in rows]
        if self.positives:
            draw = Random(f"{self.seed}/{step}")
            # Pairs of other processes are drawn too, so that the generators of all processes draw the same numbers.
            pairs = [self.positives(passage, draw) for passage in sentences]
            firsts, texts = [pairs[i][0] for i in rows], [pairs[i][1] for i in rows]
        return Batch(
            sentences,
            rows,
            self._tokens(self.encoder, texts),
            self._tokens(self.teacher, texts) if self.teacher else None,
            self._tokens(self.encoder, firsts) if firsts is not None else None,
        )

    def _tokens(self, of: Encoder, texts: Sequence[str]) -> Sequence[Tokens]:
        return of.tokenizer.encode(texts, max_length=min(self.max_length, of.max_length))


def prefetch(items: Iterator[T], *, depth: int = AHEAD) -> Generator[T, None, None]:
    """Yield `items` in order, while a thread computes up to `depth` items in advance.

    An exception of `items` is raised after the items that precede it.
    """
    end = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as thread:
        waiting = deque(thread.submit(next, items, end) for _ in range(depth))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(thread.submit(next, items, end))
            yield item  # type: ignore[misc]  # `end` alone is no T
