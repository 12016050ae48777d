"""Line formats: NDJSON and plain text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from serving.errors import Invalid, Malformed, ServiceError, TooLarge
from serving.ingest.rows import Row, json_value, row_bytes, utf8
from serving.settings import Settings

BOM = b"\xef\xbb\xbf"
PIECE = 65_536
NOT_LINES = (
    "must be a document, as a JSON object on a line of its own; a list of documents, or JSON over several lines, is "
    "application/json, or a file called .json"
)


def lines(stream: BinaryIO, limit: int) -> Iterator[tuple[int, bytes | TooLarge]]:
    """Yield each line with its number, from 1, and its line end, without a byte order mark.

    A line of more than `limit` bytes becomes an error. Its rest is skipped and never in memory.
    """
    number = 0
    while line := stream.readline(limit + 1):
        number += 1
        if len(line) > limit and not line.endswith(b"\n"):
            while (rest := stream.readline(PIECE)) and not rest.endswith(b"\n"):
                pass
            yield number, TooLarge(f"more than the {limit} bytes of one row")
        else:
            yield number, line.removeprefix(BOM) if number == 1 else line


def ndjson_rows(stream: BinaryIO, settings: Settings) -> Iterator[Row]:
    """Yield one JSON document per line, skipping blank lines."""
    for number, line in lines(stream, row_bytes(settings)):
        if isinstance(line, ServiceError):
            yield Row(f"line {number}", line)
        elif line and not line.isspace():
            value = json_value(line)
            is_list = isinstance(value, list) or (isinstance(value, dict) and isinstance(value.get("documents"), list))
            cut = isinstance(value, Malformed) and line.rstrip().endswith((b"[", b"{", b","))
            yield Row(f"line {number}", Invalid(NOT_LINES) if is_list or cut else value)


def text_rows(stream: BinaryIO, settings: Settings) -> Iterator[Row]:
    """Yield one text per line, skipping blank lines."""
    for number, line in lines(stream, settings.max_text_bytes + len(b"\r\n")):
        text = line if isinstance(line, ServiceError) else utf8(line.rstrip(b"\r\n"))
        if isinstance(text, ServiceError):
            yield Row(f"line {number}", text)
        elif text and not text.isspace():
            yield Row(f"line {number}", {"text": text})
