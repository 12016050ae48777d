"""Files of a corpus: paths, rows of tables, and sentences, which are lines of text or values of a column.

Paths may be files, folders, patterns and data sets on the hub. Text whose first bytes show another format is refused.
"""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import io
import logging
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal, Protocol, Self

from models.errors import Refused, first_line
from models.remotes.base import as_remote_error
from training.data import strict_json

log = logging.getLogger(__name__)

OPENERS: dict[str, Callable[[IO[bytes]], BufferedIOBase]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": lzma.LZMAFile,
}
UNREAD = {".bz2", ".zst", ".lz4", ".7z", ".rar", ".zip", ".tar", ".tgz", ".txz"}
"""Suffixes of unsupported compression formats. These files must not be read as text."""
DELIMITERS = {".csv": ",;", ".tsv": "\t"}
"""Possible delimiters by file suffix."""
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
TABLES = (*DELIMITERS, *JSON_LINES, PARQUET)
UNREAD_TABLES = (".arrow", ".feather", ".xlsx", ".json")
"""Suffixes of unsupported table formats. Users can convert these files to JSON lines or Parquet."""
IN_FOLDERS = (".txt", *TABLES)
"""Suffixes of the files that are read from a folder."""
COLUMNS = ("text", "sentence")
"""Default columns of a table. The first existing column is read."""
TITLE = "title"
COLUMN_ADVICE = ": name one by --text-column"
ROWS_AT_ONCE = 1024
"""Rows of Parquet in memory at once."""
READ_AT_ONCE = 1 << 20
"""Number of bytes of a Parquet column that are read at once. A whole column can be as long as the file."""
csv.field_size_limit(sys.maxsize)  # By default, a document of more than 131,072 characters is an error.


class File(Protocol):
    """A file to read: a path, or another object with this part of Path's interface."""

    @property
    def suffix(self) -> str: ...
    def with_suffix(self, suffix: str, /) -> Self: ...
    def open(self, mode: Literal["rb"], /) -> IO[bytes]: ...


class CorpusError(Refused):
    """The corpus can't be read or trained on. The message names the file and, if possible, the line."""


OnBadRow = Callable[[CorpusError], object]
"""Type of a function that is called with the error of a broken row. If the function returns, the next row is read."""


def raise_error(error: CorpusError) -> None:
    """Raise the error, so that the first bad row ends the reading."""
    raise error


def resolve_files(files: Sequence[str]) -> list[Path]:
    """List the files of folders, glob patterns and paths.

    Files of a data set on the hub, `hf://datasets/…`, are downloaded to the hub's cache if they are not there yet.

    Raises:
        CorpusError: a folder or a pattern has no files, or a path is a pipe or a device.
        Refused: a hub URL does not name a data set, or the data set has no such file.
        RemoteError: the hub can't be reached or refuses the request, or a part of the data is missing from the cache.
    """
    paths = [path for file in files for path in _files_of(file)]
    if other := next((path for path in paths if path.exists() and not path.is_file()), None):
        raise CorpusError(f"{other}: must be a file: it is read several times, which a pipe does not allow")
    return paths


def sentences(paths: Iterable[Path], column: str | None = None) -> Iterator[str]:
    """Yield every line of text files, and the text of each row of tables.

    The text is in `column` or, by default, in the first existing column of `COLUMNS`.

    Raises:
        CorpusError: see `lines` and `rows`; or a file is not text, or a value of the column is not a string.
    """
    for path in paths:
        if is_table(path, column):
            names = COLUMNS if column is None else (column,)
            yield from (_line(text, where) for where, (text,) in rows(path, names, advice=COLUMN_ADVICE))
        else:
            yield from lines([path])


def is_table(path: File, column: str | None = None) -> bool:
    """Return whether a file is a table (True) or text (False). The suffix of its name decides.

    Raises:
        CorpusError: the suffix is that of an unsupported table format, the first bytes show that the file is not text,
            or the file is text but a `column` is given.
    """
    kind = kind_of(path)
    if kind in TABLES:
        return True
    if kind in UNREAD_TABLES:
        raise CorpusError(f"{path}: {kind} is not supported: write it as Parquet, JSON lines (.jsonl) or CSV")
    if column is not None:
        raise CorpusError(f"{path}: has no column {column!r}: {', '.join(TABLES)} have columns")
    _check_text(path)
    return False


def passages(paths: Iterable[Path], column: str | None = None) -> Iterator[str]:
    """Yield every line of text files, and a passage for each row of tables.

    The passage of a row is its text. If the row has a title, the passage begins with a line that contains the title.

    Raises:
        CorpusError: a file can't be read, a file that is not a table is not text, a table has no column of texts, a row
            is broken, or `column` is given for a text file.
    """
    for path in paths:
        if kind_of(path) in TABLES:
            yield from _titled(path, COLUMNS if column is None else (column,))
        else:
            yield from sentences([path], column)


def _titled(path: Path, names: Sequence[str]) -> Iterator[str]:
    """Yield a passage for each row: a line with the row's title, if there is one, and a line with its text.

    A title that is not a string is ignored.
    """
    # If the same column were title and text, a text would be its own query.
    titles = [] if [name.lower() for name in names] == [TITLE] else [TITLE]
    for where, (title, text) in rows(path, (*titles, None), names, advice=COLUMN_ADVICE):
        line = _line(text, where)
        titled = isinstance(title, str) and title.strip() and line
        yield f"{' '.join(title.split())}\n{line}" if titled else line


def _line(text: Any, where: str) -> str:
    """Return the text of a row as one line, or "" if the row has no text.

    Raises:
        CorpusError: the text is not a string; the message begins with `where`, the position of the row.
    """
    if not isinstance(text, str | None):
        raise CorpusError(f"{where}: {text!r:.40} is not a string")
    return " ".join((text or "").split())


def rows(
    path: File, *columns: Sequence[str | None], advice: str = "", bad: OnBadRow = raise_error
) -> Iterator[tuple[str, list[Any]]]:
    """Yield each row of a table: its position for messages, such as `file:line`, and its values for `columns`.

    Each of `columns` contains the possible names of one column, in any case. The first name that exists is read. If
    None is among the names, the column may be missing, and its values are then None. Blank lines are skipped.

    `bad` is called with the error of each broken row. If `bad` returns, reading continues. With `raise_error`, bytes
    that are not UTF-8 are an error. With any other function, they become lone surrogates.

    Raises:
        CorpusError: see `lines`; or the file is not a table, a column is missing, or a row is broken and `bad` raises
            the error. The message about a missing column ends with `advice`.
    """
    kind = kind_of(path)
    if kind in DELIMITERS:
        yield from _csv_rows(path, DELIMITERS[kind], columns, advice, bad)
    elif kind in JSON_LINES:
        yield from _json_rows(path, columns, advice, bad)
    elif kind == PARQUET:
        yield from _parquet_rows(path, columns, advice)
    else:
        raise CorpusError(f"{path}: not a table: the name of a table ends in {', '.join(TABLES)}")


def lines(paths: Iterable[File], bad: OnBadRow = raise_error) -> Iterator[str]:
    """Yield every line of text files (plain, .gz or .xz), newlines included.

    `bad` is not called, but selects how bytes that are not UTF-8 are treated. With `raise_error`, they are an error.
    With any other function, they become lone surrogates, and the caller must check for these.

    Raises:
        CorpusError: a file is missing, damaged, not UTF-8, or compressed in another format.
    """
    errors = "strict" if bad is raise_error else "surrogateescape"
    for path in paths:
        with _opened(path) as file:
            for number, line in enumerate(file, start=1):
                yield _decoded(line, path, number, errors)


def text_sha256(files: Sequence[str]) -> str:
    """Return the SHA-256, in hex, of the concatenated files, with .gz and .xz decompressed.

    Raises:
        CorpusError, Refused, RemoteError: see `resolve_files` and `lines`.
    """
    digest = hashlib.sha256()
    for path in resolve_files(files):
        with _opened(path) as file:
            while part := file.read(READ_AT_ONCE):
                digest.update(part)
    return digest.hexdigest()


def _files_of(file: str) -> list[Path]:
    path = Path(file)
    if file.startswith(SCHEME):
        return _files_of(
            download_from_hub(file, [*IN_FOLDERS, *(f"{kind}{packed}" for kind in IN_FOLDERS for packed in OPENERS)])
        )
    if path.is_dir():
        inside = sorted(one for one in path.rglob("*") if one.is_file() and not _is_hidden(one.relative_to(path)))
        kept = [one for one in inside if kind_of(one) in IN_FOLDERS]
        others = [one for one in inside if kind_of(one) not in IN_FOLDERS]
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


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def kind_of(path: File) -> str:
    """Return the suffix of a file's name in lower case. A final `.gz` or `.xz` is ignored."""
    return (path.with_suffix("") if path.suffix.lower() in OPENERS else path).suffix.lower()


@contextmanager
def _opened(path: File) -> Iterator[IO[bytes] | BufferedIOBase]:
    if (packed := kind_of(path)) in UNREAD:
        raise CorpusError(f"{path}: {packed} is not supported: unpack it, or compress the text itself as .gz or .xz")
    try:
        with path.open("rb") as file:
            if opener := OPENERS.get(path.suffix.lower()):
                with opener(file) as unpacked:
                    yield unpacked
            else:
                yield file
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise CorpusError(f"{path}: {reason}") from error


def _decoded(line: bytes, path: File, number: int, errors: str) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8", errors)
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}:{number}: not UTF-8: byte 0x{line[error.start]:02x} in column {error.start + 1}"
        ) from error


def _check_text(path: File) -> None:
    """Check by a file's first bytes that its lines may be sentences.

    Raises:
        CorpusError: the file looks like a table, markup or a format that is not text; the message names the format.
    """
    with _opened(path) as file:
        what = detect_format(file.read(HEAD))
    if what:
        raise CorpusError(f"{path}: looks like {what}; a corpus is text with a sentence per line, or a table of texts")


def _csv_rows(
    path: File, delimiters: str, columns: Sequence[Sequence[str | None]], advice: str, bad: OnBadRow
) -> Iterator[tuple[str, list[Any]]]:
    rest = lines([path], bad)
    first = next(rest, "")
    table = csv.reader(chain([first], rest), delimiter=max(delimiters, key=first.count), strict=True)
    try:
        header = next(table, [])
    except csv.Error as error:
        raise CorpusError(f"{path}:{table.line_num}: {error}") from error
    chosen = [_choose_column(header, names, path, advice) for names in columns]
    places = [None if name is None else header.index(name) for name in chosen]
    while True:
        try:
            row = next(table, None)
        except csv.Error as error:
            bad(CorpusError(f"{path}:{table.line_num}: {error}"))
            continue
        if row is None:
            return
        where = f"{path}:{table.line_num}"
        if row and len(row) != len(header):
            bad(CorpusError(f"{where}: {len(row)} columns, but the header has {len(header)}"))
        elif row:
            yield where, [None if place is None else row[place] for place in places]


def _json_rows(
    path: File, columns: Sequence[Sequence[str | None]], advice: str, bad: OnBadRow
) -> Iterator[tuple[str, list[Any]]]:
    for number, line in enumerate(lines([path], bad), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = strict_json.row(line)
            chosen = [_choose_column(row, names, where, advice) for names in columns]
        except ValueError as error:
            bad(error if isinstance(error, CorpusError) else CorpusError(f"{where}: {error}"))
            continue
        yield where, [None if name is None else row[name] for name in chosen]


def _parquet_rows(path: File, columns: Sequence[Sequence[str | None]], advice: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the position and the values of each row of a Parquet file.

    Only the given columns are read, a part of a row group at a time. For `columns` and `advice`, see `rows`.

    Raises:
        CorpusError: pyarrow is not installed, the file is damaged or compressed twice, or a column is missing.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise CorpusError(f"{path}: Parquet needs the extra `data`: pip install 'isosphere[data]' ({error})") from error
    if path.suffix.lower() != PARQUET:
        raise CorpusError(f"{path}: is compressed twice, because Parquet compresses its columns itself: decompress it")
    number = 0
    with _opened(path) as file:
        try:
            table = ParquetFile(file, buffer_size=READ_AT_ONCE, pre_buffer=False)
            chosen = [_choose_column(table.schema_arrow.names, names, path, advice) for names in columns]
            there = [name for name in chosen if name is not None]
            for batch in table.iter_batches(ROWS_AT_ONCE, columns=there, use_threads=False):
                none = [None] * batch.num_rows
                for values in zip(*(batch[name].to_pylist() if name else none for name in chosen), strict=True):
                    number += 1
                    yield f"{path}: row {number}", list(values)
        except (ArrowException, UnicodeDecodeError) as error:
            raise CorpusError(f"{path}: after row {number}: {first_line(error)}") from error


def _choose_column(names: Iterable[str], wanted: Sequence[str | None], where: File | str, advice: str) -> str | None:
    """Return the first wanted column that exists, as spelt in the file.

    If None is in `wanted`, the column is optional, and the result is None if the column is missing.

    Raises:
        CorpusError: a column that is not optional is missing; the message names `where` and ends with `advice`.
    """
    own = {name.strip().lower(): name for name in names}
    asked = [name for name in wanted if name is not None]
    chosen = next((own[name.strip().lower()] for name in asked if name.strip().lower() in own), None)
    if chosen is None and None not in wanted:
        raise CorpusError(
            f"{where}: no column {' or '.join(asked)}; there are {', '.join(own.values()) or 'none'}{advice}"
        )
    return chosen


# Data sets on the Hugging Face hub, addressed as in its file system.

SCHEME = "hf://"
DATASET = re.compile(
    r"hf://datasets/(?P<name>[^/@]+/[^/@]+)(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?(/(?P<path>.*))?"
)
ALIASES = {"~parquet": "refs/convert/parquet"}
"""Short names of branches. In `~parquet`, the hub stores a data set as Parquet, by configuration and split."""


def download_from_hub(url: str, endings: Collection[str]) -> str:
    """Download data to the hub's cache, and return its path there: a file, a folder or a glob pattern.

    The URL is `hf://datasets/OWNER/NAME[@REVISION][/PATH]`, and PATH may be a pattern. From a folder only files with
    these `endings` are downloaded. Cached files need no network.

    Raises:
        Refused: the URL does not name a data set, or the data set has no such file.
        RemoteError: the hub can't be reached or refuses the request, or a part of the data is missing from the cache.
    """
    from huggingface_hub import snapshot_download

    if not (named := DATASET.fullmatch(url)):
        raise Refused(f"{url}: expected hf://datasets/OWNER/NAME[@REVISION][/PATH]")
    path = (named["path"] or "").rstrip("/")
    pattern = glob.has_magic(path)
    wanted = [path.replace("**/", "*")] if pattern else [path, *(f"{path}/*{ending}".lstrip("/") for ending in endings)]
    with as_remote_error(url, fetching=True):
        folder = snapshot_download(
            named["name"],
            repo_type="dataset",
            revision=ALIASES.get(named["revision"], named["revision"]),
            allow_patterns=wanted,
        )
    if not pattern and not Path(folder, path).exists():
        raise Refused(f"{url}: no such file, and no folder with files of {', '.join(endings)}")
    return f"{glob.escape(folder) if pattern else folder}/{path}"


# Detection of tables, markup, JSON and binary formats by a file's first bytes. Lines of such files are no sentences.

HEAD = 1 << 14
"""Number of bytes from which the format of a file is detected."""
ROWS = 4
"""Number of first rows, including the header, that must all have the same number of columns in a table."""
SIGNATURES = {
    b"%PDF-": "a PDF",
    b"PK\x03\x04": "a ZIP archive, as Office documents are",
    b"\xd0\xcf\x11\xe0": "an Office document",
    b"PAR1": "Parquet: name it .parquet",
    b"SQLite format 3": "an SQLite database",
    b"\x1f\x8b": "packed by gzip, so name it .gz",
    b"\xfd7zXZ": "packed by xz, so name it .xz",
    b"{\\rtf": "RTF",
    b"\\documentclass": "LaTeX",
}
_END = r"[^\S\n]*(?:\n|$)"
"""Pattern of the end of a line."""
_HTML = (
    r"<(html|head|body|title|meta|p|br|hr|div|span|h[1-6]|[uod]l|li|d[td]|table|t[rdh]|pre|font|center|b|i|em)\s*/?>"
)
_USED = rf'(?!s\b)(?=[^\W_]|["“<]|{_END})'
"""Pattern of the text that follows a tag in markup.

A sentence about a tag can begin with this tag, too. In such a sentence, a space, a comma or a plural s follows the tag.
"""
MARKUP = (
    r"<(!doctype|\?xml|[a-z][\w:.-]*\s[^<>]*=)",
    rf"<!--({_END}|.*?-->({_END}|<))",
    rf"<(?=[a-z])[^<>\n]*>{_USED}.*</",
    rf"<([a-z][\w:.-]*+)[^<>\n]*>.*</\1\s*>{_END}",
    # Some tags are never closed. Two of them, or three lines with the same tag at the start, show markup.
    rf"{_HTML}{_USED}.*{_HTML}{_USED}",
    rf"{_HTML}.*\n\s*<\1\s*/?>.*\n\s*<\1\s*/?>",
)
JSON = r'\[?\s*\{\s*"[^"]*"\s*:'


def detect_format(head: bytes) -> str | None:
    """Return the format that the first `HEAD` bytes show, or None if they can be text with a sentence per line."""
    if signature := next((name for signature, name in SIGNATURES.items() if head.startswith(signature)), None):
        return signature
    if b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "binary"
    text = head.decode("utf-8-sig", errors="replace")
    if any(re.match(one, text.lstrip(), re.IGNORECASE | re.DOTALL) for one in MARKUP):
        return "HTML, XML or other markup"
    if re.match(JSON, text.lstrip()):
        return "JSON: name JSON lines .jsonl"
    for ending, possible in DELIMITERS.items():
        for delimiter in possible:
            if header := _header(text, delimiter, whole=len(head) < HEAD):
                named = f"{', '.join(header):.80}"
                return (
                    f"a table with the columns {named}: name it {ending}, or delete that line if the rest are sentences"
                )
    return None


def _header(text: str, delimiter: str, *, whole: bool) -> list[str] | None:
    """Return a table's column names, or None if the text is not a table with one of `COLUMNS`.

    Prose can also have an equal number of commas in every line, so the names of the columns are checked, too. If
    `whole` is true, `text` is the whole file. Otherwise, the last row may be truncated, so it is not examined.
    """
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    first = list(islice(filter(None, rows), ROWS))
    if len(first) < 2 or (not whole and next(rows, None) is None):  # The last visible row may be truncated.
        return None
    header = first[0]
    # Prose has a space after a comma.
    names_one = any(name.lower() in COLUMNS for name in header) and all(name == name.strip() for name in header)
    return header if names_one and len({len(row) for row in first}) == 1 < len(header) else None
