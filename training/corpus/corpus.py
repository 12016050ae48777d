"""Sentences to train on: read as a stream, shuffled, each once."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from training.corpus import documented
from training.corpus.files import CorpusError, found
from training.corpus.files import passages as read_passages
from training.corpus.files import sentences as read_sentences
from training.corpus.positives import are_passages, is_passage, text_of

HELD_OUT = 2048
"""At most, and never more than a twentieth of the corpus: what a promotion compares by, once."""

WATCHED = 512
"""Of those, at most: what a run is judged by while it trains, again and again."""

SHUFFLE_BUFFER = 1 << 17
"""Sentences in memory at once: a corpus up to this size is shuffled whole, a larger one within this distance."""

INVISIBLE = (
    "".join(filter(str.isspace, map(chr, range(0x3001)))) + "\u00ad\u180e\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
)
"""White space, and characters without width: a line of nothing else is blank."""


@dataclass(frozen=True, kw_only=True)
class Census:
    """What one reading of a corpus found."""

    sentences: int
    """Different ones to train on."""
    held_out: tuple[str, ...]
    """Different ones kept out of training, by hash."""
    duplicates: int
    blank: int
    short: int = 0
    """Different ones that are too short to be trained on."""
    digest: str
    """Of all lines in order: another corpus has another."""
    threshold: int
    """A sentence is held out if its hash is at most this."""

    @property
    def watched(self) -> tuple[str, ...]:
        """Those of the held-out sentences, an even choice, that judge while it trains."""
        return self.held_out[:WATCHED]


class Corpus:
    """A stream of sentences that can be read again and again, always in the same order."""

    def __init__(
        self,
        read: Callable[[], Iterable[str]],
        *,
        name: str,
        held_out: int = HELD_OUT,
        buffer: int = SHUFFLE_BUFFER,
        is_long_enough: Callable[[str], bool] = bool,
    ) -> None:
        self.name = name
        self._read = read
        self._buffer = buffer
        self._is_long_enough = is_long_enough
        self.census = _census(read(), name, held_out, is_long_enough)

    def batches_per_epoch(self, size: int, *, least: int = 1) -> int:
        """Batches of `size` sentences in one pass, with a smaller last one if it has at least `least`.

        Raises:
            CorpusError: there is none.
        """
        whole, rest = divmod(self.census.sentences, size)
        if not whole and rest < least:
            raise CorpusError(
                f"{self.name}: {rest} different sentences to train on, and {least} are needed for a batch"
            )
        return whole + (rest >= least)

    def batches(self, size: int, *, seed: int, start: int = 0, least: int = 1) -> Iterator[list[str]]:
        """Shuffled batches of `size` sentences without end, epoch after epoch, from batch `start` on.

        The order depends on `seed` and the epoch alone, so `start` takes up a run exactly where it was left.

        Raises:
            CorpusError: there is none, or the corpus is not what it was.
        """
        per_epoch = self.batches_per_epoch(size, least=least)
        epoch, skip = divmod(start, per_epoch)
        while True:
            shuffled = _shuffled(self._training(), self._buffer, random.Random(f"{seed}/{epoch}"))
            yield from islice(_chunks(shuffled, size), skip, per_epoch)
            epoch, skip = epoch + 1, 0

    def _training(self) -> Iterator[str]:
        seen = set()
        for line in self._read():
            sentence = line.strip(INVISIBLE)
            key = _hash(text_of(sentence))
            if key > self.census.threshold and key not in seen and self._is_long_enough(sentence):
                seen.add(key)
                yield sentence
        if len(seen) != self.census.sentences:
            counts = f"{len(seen)} different sentences to train on where it had {self.census.sentences}"
            raise CorpusError(f"{self.name}: has changed since it was first read: {counts}")


def open_corpus(
    files: Sequence[str], *, column: str | None = None, held_out: int = HELD_OUT, passages: bool = False
) -> Corpus:
    """The sentences of files, folders or patterns of files, or of CPython's documentation if none is given.

    Text (plain, .gz or .xz) has one a line; a table has them in `column`, by default `text` or `sentence`.
    With `passages` the column `title` of a table is read, too, the documentation is not cut into sentences, and texts
    of a single sentence are left out.

    Raises:
        CorpusError: a file is missing, damaged, not UTF-8, no text or a pipe, or there are too few sentences.
    """
    is_long_enough = is_passage if passages else bool
    if not files and column is not None:
        raise CorpusError(f"--text-column {column}: of which corpus? name it by --corpus")
    if not files:
        texts = list(
            documented.passages() if passages else documented.sentences()
        )  # a megabyte that takes seconds to make
        return Corpus(lambda: texts, name="python-docs", held_out=held_out, is_long_enough=is_long_enough)
    paths = _regular(files)
    read = read_passages if passages else read_sentences
    return Corpus(lambda: read(paths, column), name=" ".join(files), held_out=held_out, is_long_enough=is_long_enough)


def holds_passages(files: Sequence[str], *, column: str | None = None) -> bool:
    """Whether the texts of a corpus, as `open_corpus` takes it, are passages rather than single sentences.

    Raises:
        CorpusError: a file can't be read.
    """
    return not files or are_passages(read_passages(_regular(files), column))


def _regular(files: Sequence[str]) -> list[Path]:
    paths = found(files)
    for path in paths:
        if path.exists() and not path.is_file():
            raise CorpusError(f"{path}: must be a file: what can be read once has no second epoch")
    return paths


def _census(lines: Iterable[str], name: str, held_out: int, is_long_enough: Callable[[str], bool]) -> Census:
    """The held-out sentences are those with the least hashes: an even choice that one pass and one number settle."""
    digest = hashlib.blake2b(digest_size=16)
    seen: set[int] = set()
    least: list[tuple[int, str]] = []
    short = duplicates = blank = 0
    for line in lines:
        sentence = line.strip(INVISIBLE)
        key = _hash(text_of(sentence))  # whether its title is read or not, a text is held out or trained on
        digest.update(_hash(sentence).to_bytes(8, "big"))
        if not sentence:
            blank += 1
        elif key in seen:
            duplicates += 1
        else:
            seen.add(key)
            short += not is_long_enough(sentence)
            if held_out and (len(least) < held_out or key < -least[0][0]):
                (heapq.heappush if len(least) < held_out else heapq.heappushpop)(least, (-key, sentence))
    # Short ones have a part in the threshold: so a file holds out the same texts, whether they are left out or not.
    chosen = sorted((-key, sentence) for key, sentence in least)[: len(seen) // 20]
    kept = tuple(sentence for _, sentence in chosen if is_long_enough(sentence))
    trained = len(seen) - short - len(kept)
    if trained <= 0 or (held_out and not kept):
        left_out = f", and {short} are no passages but single sentences (--preset minilm)" if short else ""
        needed = "the least is 40, with evaluation data 20" if held_out else "nothing to train on"
        raise CorpusError(f"{name}: {len(seen) - short} different sentences{left_out}; {needed}")
    return Census(
        sentences=trained,
        held_out=kept,
        duplicates=duplicates,
        blank=blank,
        short=short,
        digest=digest.hexdigest(),
        threshold=chosen[-1][0] if chosen else -1,
    )


def _hash(sentence: str) -> int:
    """64 bits: among ten million sentences two share one with probability 3e-6."""
    return int.from_bytes(hashlib.blake2b(sentence.encode("utf-8"), digest_size=8).digest(), "big")


def _shuffled(sentences: Iterator[str], size: int, draw: random.Random) -> Iterator[str]:
    buffer = list(islice(sentences, size))
    draw.shuffle(buffer)
    for sentence in sentences:
        slot = draw.randrange(size)
        yield buffer[slot]
        buffer[slot] = sentence
    yield from buffer


def _chunks(sentences: Iterator[str], size: int) -> Iterator[list[str]]:
    while chunk := list(islice(sentences, size)):
        yield chunk
