"""Conversion of documents to a corpus with one training sentence per line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from models.bundle.disk import replacing
from training.data import strict_json
from training.data.files import DELIMITERS, JSON_LINES, OPENERS, PARQUET, UNREAD_TABLES, CorpusError, lines
from training.data.sentences import WORDS, clean_sentences


@dataclass(frozen=True)
class Counts:
    """Numbers of texts and sentences in a corpus."""

    texts: int
    """Number of JSON documents or text paragraphs."""
    sentences: int


def write(files: Sequence[Path], corpus: Path) -> Counts:
    """Write the clean sentences of the documents in `files`, one per line in order, with duplicates.

    Raises:
        CorpusError: a file can't be read, a line is not a document, or no sentence is clean; nothing is written.
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
        kind = (file.with_suffix("") if file.suffix.lower() in OPENERS else file).suffix.lower()
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
