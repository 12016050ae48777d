"""Streaming parser of `{"documents": [...]}`, or of a list of documents.

The parser finds the end of each document before it parses the document.

No available library both streams and gives the guarantees of `parse_exact`: exact 64-bit integers, and errors that name
the field of a NaN or a lone surrogate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NoReturn

from serving.corpora.ingest.lines import BOM, ndjson_rows
from serving.corpora.ingest.rows import Row, json_value, row_bytes
from serving.errors import Invalid, Malformed, ServiceError, TooLarge
from serving.operations.threads import check_cancelled
from serving.settings import Settings

OPTIONS = (
    *("async", "on_error", "text_column", "id_column", "column_types", "source", "split", "metadata"),
    *("chunk_tokens", "chunk_overlap", "embedded_by"),
)
"""Query parameters that some callers send in the body by mistake."""
PIECE = 1 << 18
NO_LIST = 'must be a list of documents, such as {"documents": [{"text": "…"}]} or only the list'
_MARK = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{}]', re.DOTALL)
"""Pattern of a complete string, of a quote that opens an incomplete string, or of a bracket."""
_SPACE = re.compile(rb"[ \t\r\n]*+")
_SCALAR = re.compile(rb"[^\s,\]}\[{\":]++")


def json_rows(stream: BinaryIO, settings: Settings) -> Iterator[Row]:
    """Yield the documents as rows with the places `documents.0`, `documents.1` and so on.

    The body is a list of documents, or an object with this list in the field `documents`. Fields of the object that
    are in `OPTIONS` are refused, unless they are null. All other fields are skipped.

    Raises:
        Malformed: the body is empty, or the parts of the body between the documents are not JSON.
        Invalid: there is no list of documents, there are two lists, or a field in `OPTIONS` is not null.
        TooLarge: a document or another value is too long. The rest of the body is not read.
    """
    text = _Text(stream, row_bytes(settings))
    if not (first := text.peek()):
        raise Malformed("the body is empty")
    if first == b"{":
        yield from _fields(text)
    elif first == b"[":
        yield from _elements(text)
        text.end()
    else:
        _checked(text.value("the body"))
        text.end()
        raise Invalid(NO_LIST, field="documents")


def json_media(begun: Callable[[], BinaryIO], settings: Settings) -> str | None:
    """Return the content type of a file that contains documents as JSON, or None for any other file.

    The file is read up to the first document.

    Args:
        begun: function that opens the file at its beginning.
    """
    try:
        first = next(ndjson_rows(begun(), settings), None)
        if first and isinstance(first.value, dict) and ("documents" not in first.value or "text" in first.value):
            return "application/x-ndjson"
        if _Text(begun(), row_bytes(settings)).peek() not in (b"{", b"["):
            return None
        is_broken = False
        for row in json_rows(begun(), settings):
            if isinstance(row.value, dict):
                break
            is_broken = is_broken or isinstance(row.value, Malformed)
        else:
            if is_broken:
                return None
    except Invalid:  # the file is JSON but contains no documents
        pass
    except ServiceError:
        return None
    return "application/json"


def _fields(text: _Text) -> Iterator[Row]:
    found, misplaced = False, ""
    for _ in text.items(b"{", b"}"):
        key = _checked(text.value("the name of a field"))
        if not isinstance(key, str):
            text.fail("the name of a field, as a string,")
        text.skip(b":")
        if key != "documents":
            value = _checked(text.value(key[:80]))
            misplaced = key if key in OPTIONS and value is not None else misplaced
        elif found:
            raise Invalid("occurs twice", field="documents")
        else:
            found = text.peek() == b"["
            if not found:
                _checked(text.value("documents"))
                raise Invalid(NO_LIST, field="documents")
            yield from _elements(text)
    text.end()
    if not found:
        raise Invalid(NO_LIST, field="documents")
    if misplaced:
        raise Invalid(f"belongs in the query, as ?{misplaced}=, not in the body", field=misplaced)


def _elements(text: _Text) -> Iterator[Row]:
    for number, _ in enumerate(text.items(b"[", b"]")):
        place = f"documents.{number}"
        yield Row(place, json_value(text.value(place)))


def _checked(raw: bytes) -> Any:
    value = json_value(raw)
    if isinstance(value, ServiceError):
        raise value
    return value


class _Text:
    """A stream of JSON. Memory contains at most one value and one piece of the stream."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._stream, self._limit = stream, limit
        self._buffer = b""
        self._at = 0
        self._passed = 0
        """Number of bytes of the stream before the buffer."""
        while len(self._buffer) < len(BOM) and self._more():
            pass
        self._at = len(BOM) if self._buffer.startswith(BOM) else 0

    def peek(self) -> bytes:
        """Return the next byte that is not white space, or an empty string at the end. The byte is not skipped."""
        while True:
            space = _SPACE.match(self._buffer, self._at)
            assert space is not None
            self._at = space.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            if not self._more():
                return b""

    def skip(self, mark: bytes) -> None:
        if self.peek() != mark:
            self.fail(repr(mark.decode()))
        self._at += 1

    def items(self, begin: bytes, end: bytes) -> Iterator[None]:
        """Parse a list or object, whose brackets are `begin` and `end`. Yield at the beginning of each item."""
        self.skip(begin)
        if self.peek() != end:
            yield
            while self.peek() == b",":
                self._at += 1
                yield
            if self.peek() != end:
                self.fail(f"',' or {end.decode()!r}")
        self._at += 1

    def end(self) -> None:
        if following := self.peek():
            self.fail("the end" + " (for one document per line, use application/x-ndjson)" * (following == b"{"))

    def value(self, place: str) -> bytes:
        """Return the bytes of the next value, which may be invalid JSON. In errors, `place` names the value."""
        first = self.peek()
        if not first:
            self.fail("a value")
        length = self._container(place) if first in b'{["' else self._scalar(place)
        value = self._buffer[self._at : self._at + length]
        self._at += length
        return value

    def fail(self, wanted: str) -> NoReturn:
        raise Malformed(f"not JSON: expected {wanted} at byte {self._passed + self._at + 1}")

    def _container(self, place: str) -> int:
        """Return the length in bytes of the string, list or object at the current position."""
        depth, scanned = 0, 0
        while True:
            for mark in _MARK.finditer(self._buffer, self._at + scanned):
                if mark[0] == b'"':
                    break
                depth += (mark[0] in b"[{") - (mark[0] in b"]}")
                scanned = mark.end() - self._at
                if depth == 0:
                    return scanned
            else:
                scanned = len(self._buffer) - self._at
            if not self._more():
                raise Malformed(f"not JSON: it ends within {place}")
            self._check(place)

    def _scalar(self, place: str) -> int:
        while True:
            scalar = _SCALAR.match(self._buffer, self._at)
            if scalar is None:
                self.fail("a value")
            length, ended = scalar.end() - self._at, scalar.end() < len(self._buffer)
            if ended or not self._more():
                return length
            self._check(place)

    def _check(self, place: str) -> None:
        if len(self._buffer) - self._at > self._limit + PIECE:
            raise TooLarge(f"more than the {self._limit} bytes of one value", field=place)

    def _more(self) -> bool:
        check_cancelled()
        piece = self._stream.read(PIECE)
        if self._at:
            self._passed += self._at
            self._buffer, self._at = self._buffer[self._at :] + piece, 0
        else:
            self._buffer += piece
        return bool(piece)
