"""Corpora written from other files: the sentences of documents, and excerpts of a corpus."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

from models.bundle.bundle import sha256
from models.bundle.disk import make_folder, replacing
from training.data import strict_json
from training.data.files import DELIMITERS, JSON_LINES, PARQUET, UNREAD_TABLES, CorpusError, kind_of, lines, sentences
from training.data.sentences import WORDS, clean_sentences, word_starts


@dataclass(frozen=True)
class Counts:
    """Number of texts that were read, and number of sentences that were written to the corpus."""

    texts: int
    """Number of JSON documents or text paragraphs."""
    sentences: int


def write(files: Sequence[Path], corpus: Path) -> Counts:
    """Write the clean sentences (see `is_clean`) of `files` to the file `corpus`, one per line.

    The sentences are in the order of the input. Duplicates are not removed.

    Raises:
        CorpusError: a file can't be read, a line is not a document, no sentence is clean, or `corpus` is one of the
            `files`. In these cases, nothing is written.
        OSError: the corpus can't be written.
    """
    if corpus.resolve() in {file.resolve() for file in files}:
        raise CorpusError(f"{corpus}: is both an input and the output: name another file with --out")
    read = kept = 0
    with replacing(corpus) as beside, beside.open("w", encoding="utf-8") as written:
        for text in texts(files):
            read += 1
            for sentence in clean_sentences(text):
                kept += 1
                written.write(f"{sentence}\n")
        if not kept:
            raise CorpusError(
                f"{' '.join(map(str, files))}: no clean English sentence of {WORDS.start} to {WORDS.stop - 1} words in "
                f"{read} texts; for another language, write the corpus yourself, one sentence per line"
            )
    return Counts(read, kept)


def texts(files: Iterable[Path]) -> Iterator[str]:
    """Yield title and text of each object in `.jsonl` and `.ndjson` files, and each paragraph of other files.

    The objects have BEIR's fields `title` and `text`. Files may be compressed, .gz or .xz.

    Raises:
        CorpusError: a file can't be read or is of another format, or a line of JSON has no text.
    """
    for file in files:
        kind = kind_of(file)
        if kind in (*DELIMITERS, PARQUET, *UNREAD_TABLES):
            raise CorpusError(
                f"{file}: {kind} is not supported here: convert it to .jsonl, with one object with title and text per "
                "line, or to text"
            )
        yield from _documents(file) if kind in JSON_LINES else _paragraphs(file)


def _documents(file: Path) -> Iterator[str]:
    for where, row in strict_json.rows(lines([file]), file, CorpusError):
        title, text = row.get("title"), row.get("text")
        if not isinstance(title, str | None) or not isinstance(text, str):
            raise CorpusError(f"{where}: title or text is missing or not a string")
        yield f"{title or ''}\n\n{text}"


def _paragraphs(file: Path) -> Iterator[str]:
    for blank, group in groupby(lines([file]), key=lambda line: not line.strip()):
        if not blank:
            yield "".join(group)


# Excerpts of a corpus: its first lines, or lines of certain lengths.


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """A selection of lines of a corpus. By default, all lines are selected."""

    first: int | None = None
    """If set, only this number of lines at the beginning of the corpus can be selected."""
    words: tuple[int, ...] | None = None
    """Minimum and maximum number of words in a line, as `word_starts` counts them."""

    def __post_init__(self) -> None:
        if self.first is not None and self.first < 1:
            raise ValueError(f"first: {self.first} is less than one line")
        if self.words is not None and not (len(self.words) == 2 and 1 <= self.words[0] <= self.words[1]):
            raise ValueError(f"words: {[*self.words]} is not a minimum and a maximum, such as [4, 16]")

    def of(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield those of `lines` that are in this excerpt, in order and without blank lines."""
        least, most = self.words or (1, math.inf)
        return (line for line in islice(lines, self.first) if least <= len(word_starts(line)) <= most)

    def write(self, files: Sequence[str], folder: Path) -> str:
        """Write this excerpt of `files` to a file in `folder`, unless the file exists. Return the path of the file.

        Raises:
            CorpusError: the corpus can't be read, or the excerpt is empty.
            OSError: the file can't be written.
        """
        paths = [Path(file) for file in files]
        if absent := [path for path in paths if not path.is_file()]:
            raise CorpusError(f"{absent[0]}: is not a file")
        known = f"{self}{[sha256(path) for path in paths]}"
        written = folder / f"{hashlib.blake2b(known.encode('utf-8'), digest_size=6).hexdigest()}.txt"
        if written.exists():
            return str(written)
        make_folder(folder)
        with replacing(written) as beside:
            with beside.open("w", encoding="utf-8") as file:
                file.writelines(f"{line.strip()}\n" for line in self.of(sentences(paths)))
            if not beside.stat().st_size:
                raise CorpusError(f"{' '.join(files)}: has no line of {self}")
        return str(written)

    def __str__(self) -> str:
        parts = [f"{self.words[0]} to {self.words[1]} words"] if self.words else []
        parts += [f"the first {self.first}"] if self.first else []
        return " among ".join(parts) or "it all"
