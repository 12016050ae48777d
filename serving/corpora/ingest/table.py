"""CSV: a header, then one document per row."""

from __future__ import annotations

import csv
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, BinaryIO, Literal, NamedTuple, Self, get_args

import orjson

from serving.corpora.filters import instant
from serving.corpora.ingest.lines import lines
from serving.corpora.ingest.rows import CHARSET_ADVICE, EXPIRES_AT, Row, absent, listed, row_bytes, utf8
from serving.errors import Empty, Invalid, Malformed, ServiceError, TooLarge
from serving.operations.json_body import FITS, LEAST, MOST
from serving.settings import Settings

_INTEGER = re.compile(r"[+-]?0*([0-9]+)")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DIGITS = 20
"""Maximum digits of an integer that is stored as a number."""
_BOOLEANS = {"true": True, "false": False}
_SHOWN = 40
ColumnType = Literal["auto", "string", "number", "boolean", "date"]
ColumnTypes = Literal["header", "auto"] | dict[str, ColumnType]
_WORDS: dict[str, ColumnTypes] = {"header": "header", "auto": "auto"}
JSON_HINT = (
    "the header looks like JSON: send it as application/json, or as application/x-ndjson where each line is a "
    "document, or name the file .json or .ndjson"
)
_PADDED = re.compile(r"\s*(\+|-?0[0-9])")
"""Pattern of fields that look like numbers but are not, such as telephone numbers and postal codes."""
DELIMITERS = ",;\t"
_SEPARATOR = re.compile(r'"?sep=([^"\r\n])"?\s*', re.IGNORECASE)
CR_ALONE = "a line ends with CR only: end lines with LF or CR LF"


# The columns of a table are the text, the id, the time of expiry, and the metadata with their types.


class Columns(NamedTuple):
    """The columns of a table. `text`, `id` and `expires_at` are positions in a row."""

    width: int
    text: int
    id: int | None
    expires_at: int | None
    text_name: str
    id_name: str
    metadata: Sequence[tuple[int, str, Callable[[str], Any] | None]]
    """Index and name of each metadata column, and the function that parses its values. None means that values stay
    strings."""

    @classmethod
    def of(
        cls,
        header: Sequence[str],
        text_column: str | None,
        id_column: str | None,
        *,
        types: Mapping[str, str],
        found: Mapping[str, str],
        place: str,
    ) -> Self:
        """Find the columns in a header.

        A column's name may end in a type, as in Meilisearch: `year:number`, `day:date`. `types` has requested types of
        columns, and `found` has inferred types. A requested type, except `auto`, overrides the type in the header. An
        inferred type is used only if the header has no type. The default type is string. An unknown suffix stays part
        of the name.

        Text, id and time of expiry are strings. Their columns are `text_column` or `text`, `id_column` or `id`, and
        `expires_at`. If no column has exactly this name, upper and lower case are not distinguished.

        White space around a name is removed. Columns without a name are left out, because spreadsheets write empty
        columns at the end, and pandas writes its index at the beginning. `place` is the place of the header in error
        messages.

        Raises:
            Invalid: a column occurs twice, the text column or the requested id column is missing, or `types` has a
                column that is not metadata.
        """
        columns = [_typed(name.strip()) for name in header]
        names = [name for name, _ in columns]
        named = [name for name in names if name]
        if len(set(named)) < len(named):
            raise Invalid(f"a column occurs twice: {listed(names)}", field=place)
        text_at = _place(text_column or "text", names)
        if text_at is None:
            raise Invalid(_no_text_column(text_column or "text", header, named), field="text_column")
        id_at = _place(id_column or "id", names)
        if id_column is not None and id_at is None:
            raise Invalid(absent(id_column, named, "column", "id_column"), field="id_column")
        if id_at == text_at and id_column is None:
            id_at = None
        expires_at = _place(EXPIRES_AT, names)
        if expires_at in (text_at, id_at):
            expires_at = None
        others = [
            (i, name, _TYPES.get(types.get(name, ""), read) or _TYPES.get(found.get(name, "")))
            for i, (name, read) in enumerate(columns)
            if name and i not in (text_at, id_at, expires_at)
        ]
        typed = [name for _, name, _ in others]
        if unknown := [name for name in types if name not in typed]:
            said = f"{unknown[0][:_SHOWN]!r} is not a metadata column; these are {listed(typed) or 'none'}"
            raise Invalid(said, field="column_types")
        id_name = "id" if id_at is None else names[id_at]
        return cls(len(header), text_at, id_at, expires_at, names[text_at], id_name, others)

    def value(self, fields: Sequence[str]) -> dict[str, Any] | Invalid:
        """Return a row as a raw document, or the error of the row.

        An empty id and an empty time of expiry count as missing.
        """
        if len(fields) < self.width or any(map(str.strip, fields[self.width :])):
            return Invalid(f"has {len(fields)} fields, but the header has {self.width}")
        metadata = {}
        for i, name, read in self.metadata:
            try:
                value = read(fields[i]) if read else fields[i]
            except ValueError as error:
                return Invalid(f"{fields[i][:_SHOWN]!r} {error}", field=name[:_SHOWN])
            if value is not None:
                metadata[name] = value
        id = None if self.id is None else fields[self.id] or None
        expires_at = {} if self.expires_at is None else {EXPIRES_AT: fields[self.expires_at].strip() or None}
        return {"id": id, "text": fields[self.text], "metadata": metadata, **expires_at}


def _no_text_column(wanted: str, header: Sequence[str], named: Sequence[str]) -> str:
    """Return the message for a header without the text column `wanted`."""
    if header[0].lstrip().startswith(("{", "[")):
        return JSON_HINT
    if "\0" in header[0]:
        return "the header has NUL characters: give the encoding, such as content-type: text/csv; charset=utf-16le"
    if len(named) == 1 and "|" in named[0]:
        return f"the header is a single column {named[0][:_SHOWN]!r}: separate columns by commas, semicolons or tabs"
    return absent(wanted, named, "column")


def _place(wanted: str, names: Sequence[str]) -> int | None:
    """Return the index of the column with the name `wanted`.

    If no column has exactly this name, compare the names without regard to case, and to white space around `wanted`.
    Return None if this comparison finds no column, or more than one.
    """
    if wanted in names:
        return names.index(wanted)
    alike = [i for i, name in enumerate(names) if name.casefold() == wanted.strip().casefold()]
    return alike[0] if len(alike) == 1 else None


def _typed(column: str) -> tuple[str, Callable[[str], Any] | None]:
    name, colon, kind = column.rpartition(":")
    return (name.strip(), _TYPES[kind]) if colon and kind in _TYPES else (column, None)


def _number(field: str) -> int | float | None:
    if not (given := field.strip()):
        return None
    if whole := _INTEGER.fullmatch(given):
        if len(whole[1]) > _DIGITS or not LEAST <= (number := int(given)) <= MOST:
            raise ValueError(f"is not {FITS}")
        return number
    if not _NUMBER.fullmatch(given):
        raise ValueError("is not a number")
    if not math.isfinite(value := float(given)):
        raise ValueError("is too large a number")
    return value


def _boolean(field: str) -> bool | None:
    if not (given := field.strip().lower()):
        return None
    if given not in _BOOLEANS:
        raise ValueError("is neither true nor false")
    return _BOOLEANS[given]


def _date(field: str) -> str | None:
    """Return a date without white space around it, or None for an empty field.

    Raises:
        ValueError: the field is not a date.
    """
    if not (given := field.strip()):
        return None
    if instant(given) is None:
        raise ValueError("is not a date such as 2024-03-05 or 2024-03-05T08:30:00Z")
    return given


_TYPES: dict[str, Callable[[str], Any]] = {"number": _number, "boolean": _boolean, "date": _date, "string": str}


def types_of(found: Iterable[Row]) -> dict[str, str]:
    """Return the type of each metadata column: the first of `_TYPES` that fits all non-empty fields of the column."""
    possible = dict[str, list[str]]()
    for row in found:
        for name, value in row.value["metadata"].items() if isinstance(row.value, dict) else ():
            if isinstance(value, str) and value.strip():
                kinds = possible.setdefault(name, [*_TYPES])
                kinds[:] = [kind for kind in kinds if _is(kind, value)]
    return {name: kinds[0] for name, kinds in possible.items()}


def read_column_types(text: str) -> ColumnTypes:
    """Parse the requested column types: `header`, `auto`, or a JSON object with the types of some columns.

    With `header`, the types are those in the table's header. With `auto`, types that the header lacks are inferred from
    the values. The two words and the names of types may have upper-case letters.

    Raises:
        Invalid: `text` is none of these, or a type is unknown.
    """
    if word := _WORDS.get(text.lower()):
        return word
    try:
        types = orjson.loads(text)
    except orjson.JSONDecodeError:
        types = None
    if isinstance(types, dict):
        types = {name: kind.lower() if isinstance(kind, str) else kind for name, kind in types.items()}
    if not isinstance(types, dict) or not all(kind in get_args(ColumnType) for kind in types.values()):
        kinds = ", ".join(get_args(ColumnType))
        said = f'must be header, auto, or a JSON object such as {{"year": "number"}}; types are {kinds}'
        raise Invalid(said, field="column_types")
    return types


def _is(kind: str, field: str) -> bool:
    try:
        _TYPES[kind](field)
    except ValueError:
        return False
    return kind != "number" or not _PADDED.match(field)


# The limit applies to the whole process, and its default is too small for texts. `_Feed` limits the rows instead.
csv.field_size_limit(sys.maxsize)


class _Feed:
    """Iterator of a table's lines for `csv`.

    `csv` reads several lines for a row if a quoted field contains line ends.
    """

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._lines = lines(stream, limit)
        self._limit = limit
        self._bytes = 0
        self.number = 0
        """Number of the last line returned."""
        self.begins = 1
        """Number of the first line of the current row."""
        self.bad: ServiceError | None = None
        """Error in one of the lines of the current row, or None."""

    def next_row(self) -> None:
        self._bytes, self.bad, self.begins = 0, None, self.number + 1

    def check(self) -> None:
        """If a line of the current row is invalid, raise an error that names the row's first line."""
        if self.bad:
            raise type(self.bad)(self.bad.message, field=f"line {self.begins}")

    def written(self) -> str | None:
        """Skip blank lines, begin a new row, and return its first line. At the end of the table, return None."""
        self.next_row()
        while (line := next(self, None)) and line.isspace():
            self.next_row()
        return line

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            self.number, line = next(self._lines)
        except TooLarge as error:  # the compressed body unpacks to too many bytes
            raise TooLarge(error.message, field=f"line {self.begins}") from None
        self._bytes += 0 if isinstance(line, ServiceError) else len(line)
        if isinstance(line, ServiceError) or self._bytes > self._limit:
            message = f"more than the {self._limit} bytes of one row: is a quote left open?"
            raise TooLarge(message, field=f"line {self.begins}")
        place = "" if self.number == self.begins else f" (of line {self.number})"
        text = utf8(line, place + CHARSET_ADVICE)
        if isinstance(text, ServiceError):
            self.bad = text
            return line.decode(errors="replace")
        return text


def csv_rows(
    stream: BinaryIO,
    settings: Settings,
    text_column: str | None = None,
    id_column: str | None = None,
    types: Mapping[str, str] = MappingProxyType({}),
    *,
    found: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Row]:
    """Yield the rows of a CSV table. The place of a row is its first line.

    The separator is the comma, semicolon or tab, whichever is most frequent in the header. A line `sep=;` before the
    header, which Excel writes and reads, names another separator. `text_column` defaults to `text`, and `id_column` to
    `id` if this column exists. All other columns are metadata. See `Columns.of` for `types` and `found`. Empty rows are
    skipped.

    Raises:
        Empty: there is no header.
        Malformed: the header is not CSV in UTF-8.
        Invalid: see `Columns.of`.
        TooLarge: the header or a row is too long. Later rows are not read. If a quote in the row was never closed, the
            beginning of the next row is unknown.
    """
    feed = _Feed(stream, row_bytes(settings))
    first = feed.written()
    if separator := _SEPARATOR.fullmatch(first or ""):
        first = feed.written()
    place = f"line {feed.begins}"
    feed.check()
    if first is None:
        raise Empty("must begin with a header that names the columns", field=place)
    names = "".join(first.split('"')[::2])  # the text outside of quotes
    delimiter = separator[1] if separator else max(DELIMITERS, key=names.count)
    _, *others = names.split(delimiter)
    # If a space follows each separator, `csv` must also ignore the space before a quote, as in `1, "a, b"`.
    spaced = bool(others) and all(name.startswith(" ") for name in others)
    reader = csv.reader(chain([first], feed), delimiter=delimiter, skipinitialspace=spaced, strict=True)
    try:
        header = next(reader)
    except csv.Error as error:
        raise Malformed(f"not a header of CSV: {_said(error)}", field=place) from None
    feed.check()
    columns = Columns.of(header, text_column, id_column, types=types, found=found, place=place)
    while True:
        feed.next_row()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            with_it = (
                f"; the lines up to {feed.number} were read as part of this row" if feed.number > feed.begins else ""
            )
            yield Row(f"line {feed.begins}", feed.bad or Malformed(f"not CSV: {_said(error)}{with_it}"))
        else:
            if feed.bad or any(map(str.strip, fields)):
                yield Row(f"line {feed.begins}", feed.bad or columns.value(fields), columns.text_name, columns.id_name)


def _said(error: csv.Error) -> str:
    """Return Python's message about `error`, without its advice on how programs should open files."""
    return CR_ALONE if str(error).startswith("new-line character") else str(error)
