"""CSV: a header, then one document per row."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import BinaryIO

from serving.errors import Empty, Malformed, ServiceError, TooLarge
from serving.ingest.columns import Columns
from serving.ingest.lines import lines
from serving.ingest.rows import Row, row_bytes, utf8
from serving.settings import Settings

DELIMITERS = ",;\t"
_SEPARATOR = re.compile(r'"?sep=([^"\r\n])"?\s*', re.IGNORECASE)
CR_ALONE = "a line ends in CR alone: lines end in LF or CR LF"
csv.field_size_limit(sys.maxsize)  # process-wide, and too small for texts by default; `_Feed` limits rows


class _Feed:
    """Lines of a table for `csv`, which requests several per row if a quoted field contains line ends."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._lines = lines(stream, limit)
        self._limit = limit
        self._bytes = 0
        self.number = 0
        """Number of the last line returned."""
        self.begins = 1
        """Number of the line that the current row begins in."""
        self.bad: ServiceError | None = None
        """The error in a line of the current row."""

    def next_row(self) -> None:
        """Begin another row with the next line."""
        self._bytes, self.bad, self.begins = 0, None, self.number + 1

    def written(self) -> str | None:
        """Return the next line that is not blank, as the first of a row; None at the end."""
        self.next_row()
        while (line := next(self, None)) and line.isspace() and not self.bad:
            self.next_row()
        return line

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.number, line = next(self._lines)
        if isinstance(line, ServiceError):
            self.bad = line
            return "\n"
        self._bytes += len(line)
        if self._bytes > self._limit:
            raise TooLarge(f"more than the {self._limit} bytes of one row: is a quote left open?")
        text = utf8(line)
        if isinstance(text, ServiceError):
            self.bad = text if self.number == self.begins else Malformed(f"{text.message} (of line {self.number})")
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
    """Yield the rows, whose place is the line that they begin in.

    The separator is the comma, semicolon or tab of the header, or the one that a line before it names (`sep=;`, which
    Excel writes and reads). `text_column` defaults to `text`, and `id_column` to `id` if it exists. All other columns
    are metadata; see `Columns`, also for `types` and `found`. Empty rows are skipped.

    Raises:
        Empty, Malformed, Invalid: there is no header, or it lacks a column or has one twice.
        TooLarge: a row is too long. It may have no end, so no later row can be found.
    """
    feed = _Feed(stream, row_bytes(settings))
    first = feed.written()
    if separator := _SEPARATOR.fullmatch(first or ""):
        first = feed.written()
    place = f"line {feed.begins}"
    if feed.bad:
        raise type(feed.bad)(feed.bad.message, field=place)
    if first is None:
        raise Empty("must begin with a header that names the columns", field=place)
    names = _outside_quotes(first)
    delimiter = separator[1] if separator else max(DELIMITERS, key=names.count)
    _, *others = names.split(delimiter)
    spaced = bool(others) and all(name.startswith(" ") for name in others)  # also before quotes: `1, "a, b"`
    reader = csv.reader(chain([first], feed), delimiter=delimiter, skipinitialspace=spaced, strict=True)
    try:
        header = next(reader)
    except csv.Error as error:
        raise Malformed(f"not a header of CSV: {_said(error)}", field=place) from None
    except TooLarge as error:
        raise TooLarge(error.message, field=place) from None
    if feed.bad:
        raise type(feed.bad)(feed.bad.message, field=place)
    columns = Columns.of(header, text_column, id_column, types=types, found=found, place=place)
    while True:
        feed.next_row()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            with_it = f"; what stands up to line {feed.number} was read with it" if feed.number > feed.begins else ""
            yield Row(f"line {feed.begins}", feed.bad or Malformed(f"not CSV: {_said(error)}{with_it}"))
        except TooLarge as error:
            raise TooLarge(error.message, field=f"line {feed.begins}") from None
        else:
            if feed.bad or any(map(str.strip, fields)):
                yield Row(f"line {feed.begins}", feed.bad or columns.value(fields), columns.text_name, columns.id_name)


def _said(error: csv.Error) -> str:
    """Return Python's message, except for the one about how a program opens files."""
    return CR_ALONE if str(error).startswith("new-line character") else str(error)


def _outside_quotes(line: str) -> str:
    return "".join(line.split('"')[::2])
