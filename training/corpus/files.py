"""Files of a corpus as sentences: of text every line, of a table one column."""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import logging
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path

from models.errors import Refused
from training import strict_json

log = logging.getLogger(__name__)

OPENERS: dict[str, Callable[[Path], BufferedIOBase]] = {".gz": gzip.GzipFile, ".xz": lzma.LZMAFile}
UNREAD = {".bz2", ".zst", ".lz4", ".7z", ".rar", ".zip", ".tar", ".tgz", ".txz"}
"""Of files that are packed in another way; read as text they would be whatever their bytes happen to be."""
DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
TABLES = (".parquet", ".arrow", ".feather", ".xlsx", ".json")
"""Formats that are not read, and whose content can be written as JSON lines."""
IN_FOLDERS = (".txt", *DELIMITERS, *JSON_LINES)
"""Kinds of files that a folder is searched for."""
COLUMNS = ("text", "sentence")
"""Of a table, where none is named: the first that is there."""
HEAD = 4096
"""Bytes by which a file is told to be no text."""
SIGNATURES = {
    b"%PDF-": "a PDF",
    b"PK\x03\x04": "a ZIP archive, as Office documents are",
    b"\xd0\xcf\x11\xe0": "an Office document",
    b"PAR1": "Parquet",
    b"SQLite format 3": "an SQLite database",
    b"\x1f\x8b": "packed by gzip, so name it .gz",
    b"\xfd7zXZ": "packed by xz, so name it .xz",
    b"{\\rtf": "RTF",
    b"\\documentclass": "LaTeX",
}
MARKUP = re.compile(rb"<(!doctype|\?xml|[a-z][\w:.-]*\s[^<>]*=|(?=[a-z])[^<>]*>.*</)", re.IGNORECASE | re.DOTALL)
JSON = re.compile(rb'\[?\s*\{\s*"[^"]*"\s*:')


class CorpusError(Refused):
    """A corpus that can't be read or trained on; the message names the file and, where there is one, the line."""


def found(files: Sequence[str]) -> list[Path]:
    """List the files that are named: those in a folder, those that a pattern matches, or the file itself.

    Raises:
        CorpusError: a folder or a pattern holds none, or the name is of a data set on the hub.
    """
    return [path for file in files for path in _named(file)]


def sentences(paths: Iterable[Path], column: str | None = None) -> Iterator[str]:
    """Every line of text files, and of tables the text in a column (default: one of `COLUMNS`).

    Raises:
        CorpusError: see `lines`; or a file is no text, or a table lacks the column.
    """
    for path in paths:
        kind = _inner(path).suffix.lower()
        if kind in DELIMITERS:
            yield from _column(path, DELIMITERS[kind], column)
        elif kind in JSON_LINES:
            yield from _fields(path, column)
        elif kind in TABLES:
            raise CorpusError(f"{path}: {kind} is not read: write it as JSON lines (.jsonl) or CSV")
        elif column is not None:
            raise CorpusError(f"{path}: has no column {column!r}: .csv, .tsv, .jsonl and .ndjson have columns")
        else:
            _check_text(path)
            yield from lines([path])


def lines(paths: Iterable[Path]) -> Iterator[str]:
    """Every line of text files (plain, .gz or .xz), with the newline that ends it.

    Raises:
        CorpusError: a file is missing, damaged, not UTF-8, or packed otherwise.
    """
    for path in paths:
        with _opened(path) as file:
            for number, line in enumerate(file, start=1):
                yield _decoded(line, path, number)


def text_sha256(files: Sequence[str]) -> str:
    """SHA-256, in hex, of the text of these files one after another, however they are packed.

    Raises:
        CorpusError: see `lines`.
    """
    digest = hashlib.sha256()
    for line in lines(found(files)):
        digest.update(line.encode("utf-8"))
    return digest.hexdigest()


def _named(file: str) -> list[Path]:
    path = Path(file)
    if file.startswith("hf://"):
        raise CorpusError(
            f"{file}: data sets of the hub are not read: `datasets.load_dataset(…).to_json(FILE)` writes one as .jsonl"
        )
    if path.is_dir():
        inside = sorted(one for one in path.rglob("[!.]*") if one.is_file())
        kept = [one for one in inside if _inner(one).suffix.lower() in IN_FOLDERS]
        others = [one for one in inside if one not in kept]
        if not kept:
            raise CorpusError(f"{path}: a directory without a file of {', '.join(IN_FOLDERS)}")
        if others:
            log.warning("%s: %d files are left out, such as %s", path, len(others), others[0].name)
        return kept
    if glob.has_magic(file) and not path.exists():
        matching = [Path(one) for one in sorted(glob.glob(file, recursive=True)) if Path(one).is_file()]  # noqa: PTH207 (a Path matches no absolute pattern)
        if not matching:
            raise CorpusError(f"{file}: no file matches")
        return matching
    return [path]


def _inner(path: Path) -> Path:
    """The name of what is packed, or the file's own."""
    return path.with_suffix("") if path.suffix.lower() in OPENERS else path


@contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    if (packed := _inner(path).suffix.lower()) in UNREAD:
        raise CorpusError(f"{path}: {packed} is not read: unpack it, or pack the text alone as .gz or .xz")
    try:
        with OPENERS.get(path.suffix.lower(), _open_plain)(path) as file:
            yield file
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise CorpusError(f"{path}: {reason}") from error


def _open_plain(path: Path) -> BufferedIOBase:
    return path.open("rb")


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}:{number}: not UTF-8: byte 0x{line[error.start]:02x} in column {error.start + 1}"
        ) from error


def _check_text(path: Path) -> None:
    """Tell by how it begins that a file has no sentences in its lines.

    Raises:
        CorpusError: it begins as markup or as a format that is not text; says which.
    """
    with _opened(path) as file:
        head = file.read(HEAD)
    what = next((name for signature, name in SIGNATURES.items() if head.startswith(signature)), None)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if what is None and b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        what = "binary"
    if what is None and MARKUP.match(text):
        what = "HTML, XML or other markup"
    if what is None and JSON.match(text):
        what = "JSON: name JSON lines .jsonl"
    if what:
        raise CorpusError(f"{path}: looks like {what}; a corpus is text, a sentence a line, or a table with a column")


def _column(path: Path, delimiter: str, column: str | None) -> Iterator[str]:
    rows = csv.reader(lines([path]), delimiter=delimiter, strict=True)
    try:
        header = next(rows, [])
        place = header.index(_chosen(header, column, path))
        for row in rows:
            if row and len(row) != len(header):
                raise CorpusError(f"{path}:{rows.line_num}: {len(row)} columns, but the header has {len(header)}")
            yield " ".join(row[place].split()) if row else ""
    except csv.Error as error:
        raise CorpusError(f"{path}:{rows.line_num}: {error}") from error


def _fields(path: Path, column: str | None) -> Iterator[str]:
    for number, line in enumerate(lines([path]), start=1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            row = strict_json.loads(line)
        except ValueError as error:
            raise CorpusError(f"{where}: {error}") from error
        if not isinstance(row, dict):
            raise CorpusError(f"{where}: expected a JSON object")
        name = _chosen(row, column, where)
        if not isinstance(row[name], str | None):
            raise CorpusError(f"{where}: {name} is no string")
        yield " ".join((row[name] or "").split())


def _chosen(names: Iterable[str], wanted: str | None, where: Path | str) -> str:
    """The name of the column, in its own letters."""
    own = {name.strip().lower(): name for name in names}
    asked = [wanted] if wanted is not None else COLUMNS
    chosen = next((own[name.strip().lower()] for name in asked if name.strip().lower() in own), None)
    if chosen is None:
        raise CorpusError(
            f"{where}: no column {' or '.join(asked)}; there are {', '.join(own.values()) or 'none'}: name one by "
            "--text-column"
        )
    return chosen
