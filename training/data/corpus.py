"""The corpus of a run: training sentences, read as a stream, shuffled and deduplicated.

Some sentences are held out of training. The default corpus is Python's own documentation.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from models import python_docs
from models.python_docs import Section
from training.data.files import CorpusError, resolve_files
from training.data.files import passages as read_passages
from training.data.files import sentences as read_sentences
from training.data.positives import are_passages, is_passage, text_of
from training.data.sentences import all_sentences, clean_sentences, is_clean

HELD_OUT = 2048
"""Maximum number of held-out sentences. Promotion compares encoders on them.

At most a twentieth of the corpus is held out.
"""

MONITORED = 512
"""Maximum number of held-out sentences that monitor training."""

SHUFFLE_BUFFER = 1 << 17
"""Number of sentences in the shuffle buffer.

A corpus that fits into the buffer is shuffled completely. In a larger corpus, sentences move by about this distance.
"""

INVISIBLE = (
    "".join(filter(str.isspace, map(chr, range(0x3001)))) + "\u00ad\u180e\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
)
"""White space and zero-width characters. A line with no other characters counts as blank."""


@dataclass(frozen=True, kw_only=True)
class Census:
    """Counts and held-out sentences from one reading of a corpus."""

    sentences: int
    """Number of distinct training sentences."""
    held_out: tuple[str, ...]
    """Distinct sentences that are kept out of training, selected by hash."""
    duplicates: int
    blank: int
    short: int = 0
    """Number of distinct sentences that are too short for training."""
    digest: str
    """Digest of all lines in order, which identifies the corpus."""
    threshold: int
    """Largest hash of a held-out sentence."""

    @property
    def monitored(self) -> tuple[str, ...]:
        """Return the held-out sentences that are used to monitor training. They are a uniform sample of the corpus."""
        return self.held_out[:MONITORED]


class Corpus:
    """A stream of sentences that can be read repeatedly, always in the same order."""

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
        """Return the number of batches of `size` sentences in one epoch.

        A smaller last batch counts if it has at least `least` sentences.

        Raises:
            CorpusError: the corpus has too few sentences for a batch.
        """
        whole, rest = divmod(self.census.sentences, size)
        if not whole and rest < least:
            raise CorpusError(
                f"{self.name}: {rest} different sentences to train on, and {least} are needed for a batch"
            )
        return whole + (rest >= least)

    def batches(self, size: int, *, seed: int, start: int = 0, least: int = 1) -> Iterator[list[str]]:
        """Yield shuffled batches of `size` sentences endlessly, epoch after epoch.

        The first `start` batches are skipped. The order depends only on `seed` and the epoch, so a resumed run gets the
        same batches as an uninterrupted run. An epoch's last batch is left out if it has fewer than `least` sentences.

        Raises:
            CorpusError: the corpus has too few sentences for a batch, or has changed since it was opened.
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
            counts = f"now {len(seen)} different sentences to train on, before {self.census.sentences}"
            raise CorpusError(f"{self.name}: has changed since it was first read: {counts}")


def open_corpus(
    files: Sequence[str], *, column: str | None = None, held_out: int = HELD_OUT, passages: bool = False
) -> Corpus:
    """Open files, folders, glob patterns or data sets on the hub as a corpus.

    If `files` is empty, open CPython's documentation. A data set on the hub is named by a URL, `hf://datasets/…`.

    Text (plain, .gz or .xz) has a sentence per line. A table has sentences in `column`, by default `text` or
    `sentence`. With `passages`, a table's column `title` is read too, the documentation is not split into sentences,
    and texts that are not passages (see `is_passage`) are left out.

    Raises:
        CorpusError: a file is missing, damaged, a pipe, not UTF-8 or not text; a table lacks the column; `column` is
            given without `files`; or there are too few sentences.
        Refused: a URL does not name a data set, or the data set has no such file.
        RemoteError: the hub can't be reached or refuses the request, or the local cache lacks a part of the data.
    """
    is_long_enough = is_passage if passages else bool
    if not files and column is not None:
        raise CorpusError(f"--text-column {column}: needs a corpus: add --corpus")
    if not files:
        # The texts are a megabyte and take seconds to make, so they are kept.
        texts = [*documentation_passages()] if passages else documentation_sentences()
        return Corpus(lambda: texts, name="python-docs", held_out=held_out, is_long_enough=is_long_enough)
    paths = resolve_files(files)
    read = read_passages if passages else read_sentences
    return Corpus(lambda: read(paths, column), name=" ".join(files), held_out=held_out, is_long_enough=is_long_enough)


def has_passages(files: Sequence[str], *, column: str | None = None) -> bool:
    """Return whether a corpus, given as in `open_corpus`, has passages rather than single sentences.

    Raises:
        CorpusError: a file can't be read.
    """
    return not files or are_passages(text.strip(INVISIBLE) for text in read_passages(resolve_files(files), column))


def _census(lines: Iterable[str], name: str, held_out: int, is_long_enough: Callable[[str], bool]) -> Census:
    """Read the corpus once, count its sentences and choose the held-out ones.

    At most `held_out` sentences are held out. They have the smallest hashes, so they are a uniform sample.

    Raises:
        CorpusError: there are too few sentences.
    """
    digest = hashlib.blake2b(digest_size=16)
    seen: set[int] = set()
    least: list[tuple[int, str]] = []
    short = duplicates = blank = 0
    for line in lines:
        sentence = line.strip(INVISIBLE)
        # The hash ignores titles, so that a text is held out with and without its title.
        key = _hash(text_of(sentence))
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
    # Short sentences affect the threshold, so that the same texts are held out whether or not short ones are left out.
    chosen = sorted((-key, sentence) for key, sentence in least)[: len(seen) // 20]
    kept = tuple(sentence for _, sentence in chosen if is_long_enough(sentence))
    trained = len(seen) - short - len(kept)
    if trained <= 0 or (held_out and not kept):
        left_out = f", and {short} are single sentences (use --preset minilm) instead of passages" if short else ""
        needed = (
            "at least 20 are needed, or 40 for `train` without evaluation data" if held_out else "nothing to train on"
        )
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
    """Hash to 64 bits. Ten million sentences contain a collision with probability 3e-6."""
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


# The default corpus: the documentation inside every CPython, as sentences or passages.

MIN_WORDS = 10
"""If the first sentence of a section is used as a query, the rest of the section has at least this many words."""


def documentation_sentences() -> list[str]:
    return [sentence for section in python_docs.sections() for sentence in clean_sentences(section.text)]


def documentation_passages() -> Iterator[str]:
    """Yield a passage for each section of Python's documentation: the section's name, and its text on the next line.

    If the first sentence is suitable as a summary (see `split_summary`), the passage leaves it out. The retrieval
    collection `python-docs` uses the summaries as queries, so passages must not contain them.
    """
    for section in python_docs.sections():
        named = section.name if section.module == python_docs.TOPICS else f"{section.module} {section.name}"
        _, text = split_summary(section)
        yield f"{named.strip()}\n{' '.join(text.split())}"


def split_summary(section: Section) -> tuple[str | None, str]:
    """Return a section's summary, which is its first sentence, and the rest of its text.

    If the first sentence is not clean, or the rest is too short, return None and the whole text.
    """
    first, *rest = [sentence for part in re.split(r"\n\s*\n", section.text) for sentence in all_sentences(part)]
    behind = " ".join(rest)
    return (first, behind) if is_clean(first) and len(behind.split()) >= MIN_WORDS else (None, section.text)
