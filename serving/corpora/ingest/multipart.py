"""Streaming of the file in a `multipart/form-data` body: https://www.rfc-editor.org/rfc/rfc7578."""

from __future__ import annotations

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from serving.errors import Invalid, Malformed


class FilePart:
    """Streaming parser of a body with a single part, a file. `feed` returns the bytes of the file.

    Raises:
        Malformed: the content type has no boundary.
    """

    def __init__(self, content_type: str) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary:
            raise Malformed("multipart/form-data needs a boundary", field="content-type")
        self.media = ""
        """The content type of the file, or the empty string."""
        self.charset = ""
        """The charset in the content type of the file, or the empty string."""
        self._name: str | None = None
        self._whole = False
        self._headers: dict[bytes, bytes] = {}
        self._header, self._value = b"", b""
        self._found = bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begins,
                    "on_header_field": self._field,
                    "on_header_value": self._content,
                    "on_header_end": self._ends,
                    "on_headers_finished": self._known,
                    "on_part_data": self._data,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise Malformed(str(error), field="content-type") from None

    def feed(self, piece: bytes) -> bytes:
        """Parse the next piece of the body, and return the bytes of the file in this piece.

        Raises:
            Malformed: the body is not multipart/form-data.
            Invalid: the body has two files, or a field that is not a file.
        """
        self._found.clear()
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise Malformed(f"not multipart/form-data: {error}") from None
        return bytes(self._found)

    def finish(self) -> str:
        """Check that the body is complete, and return the name of the file.

        Raises:
            Malformed: the end of the body is missing, or the body has no file.
        """
        if not self._whole:
            raise Malformed("not multipart/form-data: its end is missing")
        if self._name is None:
            raise Malformed("multipart/form-data has no file, which is a part with a filename")
        return self._name

    def _begins(self) -> None:
        self._headers = {}

    def _field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _content(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _ends(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header = self._value = b""

    def _known(self) -> None:
        said = parse_options_header(self._headers.get(b"content-disposition", b""))[1]
        name = said.get(b"filename")
        if name is None:
            field = said.get(b"name", b"").decode(errors="replace")
            raise Invalid("a form may only have a file: send options in the query", field=field)
        if self._name is not None:
            raise Invalid(
                "an upload may have only one file: send each file in its own request",
                field=name.decode(errors="replace"),
            )
        self._name = name.decode(errors="replace")
        media, options = parse_options_header(self._headers.get(b"content-type", b""))
        self.media = media.decode("latin-1")
        self.charset = options.get(b"charset", b"").decode("latin-1")

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._found += data[start:end]

    def _end(self) -> None:
        self._whole = True
