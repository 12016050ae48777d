"""Options of an upload, and the reader of its rows."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from pathlib import PurePath
from typing import Any, BinaryIO, Literal, Self

from pydantic import BaseModel, ConfigDict

from serving.corpora.ingest.charsets import codec, in_utf8
from serving.corpora.ingest.chunking import asked_chunking
from serving.corpora.ingest.json_documents import json_media, json_rows
from serving.corpora.ingest.lines import ndjson_rows, read_fields, text_rows
from serving.corpora.ingest.rows import Row
from serving.corpora.ingest.table import ColumnTypes, csv_rows, types_of
from serving.corpora.ports import Chunking
from serving.errors import Invalid, UnsupportedMedia
from serving.operations.encoding import inflating
from serving.settings import Settings

Format = Literal["json", "ndjson", "csv", "text"]
MEDIA: dict[str, Format] = {
    "application/json": "json",
    "application/x-ndjson": "ndjson",
    "application/ndjson": "ndjson",
    "application/jsonl": "ndjson",
    "application/x-jsonl": "ndjson",
    "application/jsonlines": "ndjson",
    "application/x-jsonlines": "ndjson",
    "text/csv": "csv",
    "application/csv": "csv",
    "text/tab-separated-values": "csv",
    "text/plain": "text",
}
SUFFIXES: dict[str, Format] = {
    ".json": "json",
    ".jsonl": "ndjson",
    ".ndjson": "ndjson",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
}
PACKED = (".gz", ".zst")
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of compressed files (RFC 1952, RFC 8878). No text begins with them."""


class Options(BaseModel):
    """Options of an upload. A job stores them as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Format
    coding: str = ""
    """`gzip` or `zstd`. If it is empty, the compression is detected."""
    charset: str = ""
    """Python's codec of the upload's charset, from `charsets.codec`."""
    text_column: str | None = None
    """Name of the CSV column, or of the JSON field, that contains the text."""
    id_column: str | None = None
    column_types: ColumnTypes = "header"
    """Source of the types of CSV columns, or the types of some columns. With `auto`, a type is inferred from all
    fields of a column, unless the header names a type."""
    on_error: Literal["fail", "skip"] = "fail"
    """With `fail`, a bad row refuses the whole upload. With `skip`, bad rows are left out."""
    chunk_tokens: int | None = None
    chunk_overlap: int | None = None

    @classmethod
    def of_media(cls, media: str, charset: str | None = None, **others: Any) -> Self:
        """Return options for a content type.

        Raises:
            UnsupportedMedia: no documents have this content type, or the charset is not supported.
        """
        if media.startswith("application/") and media.endswith("+json"):
            media = "application/json"
        if media not in MEDIA:
            raise UnsupportedMedia(
                "documents come as application/json, application/x-ndjson, text/csv, text/plain, or as such a file in "
                f"multipart/form-data, not as {media[:80]}"
            )
        return cls._of(MEDIA[media], charset, others)

    @classmethod
    def of_file(cls, name: PurePath, charset: str | None = None, **others: Any) -> Self:
        """Return options for a file name. The suffix selects the format; `.gz` and `.zst` are ignored.

        Raises:
            UnsupportedMedia: the suffix is unknown, or the charset is not supported.
        """
        suffix = (name.with_suffix("") if name.suffix.lower() in PACKED else name).suffix.lower()
        if suffix not in SUFFIXES:
            known = f"{', '.join(SUFFIXES)}, with {' or '.join(PACKED)} behind it where it is packed"
            called = repr(name.name[:80]) if name.name else "a file without a name"
            raise UnsupportedMedia(f"{called}: the name of a file of documents ends in {known}")
        return cls._of(SUFFIXES[suffix], charset, others)

    @classmethod
    def of_part(cls, name: PurePath, media: str, charset: str | None = None, **others: Any) -> Self:
        """Return options for a file in a multipart body.

        The file's name selects the format, because browsers often send a wrong content type. An unknown suffix leaves
        the choice to the content type.
        """
        try:
            return cls.of_file(name, charset, **others)
        except UnsupportedMedia:
            if media not in MEDIA:
                raise
        return cls.of_media(media, charset, **others)

    @classmethod
    def _of(cls, format: Format, charset: str | None, others: dict[str, Any]) -> Self:
        """Return options for a format. JSON is always UTF-8 (RFC 8259), so its `charset` is ignored."""
        return cls(format=format, charset=codec(charset) if charset and format in ("csv", "text") else "", **others)

    @property
    def chunking(self) -> Chunking | None:
        """The requested chunking. None means that texts are not split.

        Raises:
            Invalid: the request is contradictory or out of range.
        """
        return asked_chunking(self.chunk_tokens, self.chunk_overlap)


def rows(file: BinaryIO, options: Options, settings: Settings, most: int | None = None) -> Iterator[Row]:
    """Yield the rows of a seekable file, from its beginning. If a row can't be read, its value is the error.

    Args:
        most: maximum rows from which types of columns are inferred. Callers do not keep an upload with more.

    Raises:
        Malformed, Invalid, Empty, TooLarge: more than one row can't be read, or an option is wrong.
    """
    for option in ("text_column", "id_column"):
        if getattr(options, option) == "":
            raise Invalid("must not be empty", field=option)
    types = options.column_types if isinstance(options.column_types, dict) else {}
    if types and options.format != "csv":
        raise Invalid("only columns of CSV are given types", field="column_types")
    columns, found = (options.text_column, options.id_column, types), dict[str, str]()
    if options.format == "csv" and (options.column_types == "auto" or "auto" in types.values()):
        found = types_of(islice(csv_rows(_begun(file, options, settings), settings, *columns), most))
        if types:
            found = {name: kind for name, kind in found.items() if types.get(name) == "auto"}
    stream = _begun(file, options, settings)
    match options.format:
        case "json":
            return _fields(json_rows(stream, settings), options)
        case "ndjson":
            return _fields(ndjson_rows(stream, settings), options)
        case "csv":
            return csv_rows(stream, settings, *columns, found=found)
        case "text":
            return text_rows(stream, settings)


def check_is_text(file: BinaryIO, options: Options, settings: Settings) -> None:
    """Check that JSON was not sent as text/plain, the type that a browser's `fetch` gives to every string.

    Raises:
        UnsupportedMedia: `file` begins like documents in JSON. The message names the type to send.
    """
    if options.format == "text" and (media := json_media(lambda: _begun(file, options, settings), settings)):
        raise UnsupportedMedia(
            f"the body is JSON: send it as {media}, not as text/plain. To store each line of it as a text, send it in "
            "multipart/form-data as a file whose name ends in .txt",
            field="content-type",
        )


def _fields(found: Iterator[Row], options: Options) -> Iterator[Row]:
    return (read_fields(row, options.text_column, options.id_column) for row in found)


def _begun(file: BinaryIO, options: Options, settings: Settings) -> BinaryIO:
    return in_utf8(lambda: _unpacked(file, options.coding, settings.max_upload_bytes), options.charset)


def _unpacked(file: BinaryIO, coding: str, limit: int) -> BinaryIO:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if not coding:
        start = file.read(max(map(len, MAGIC)))
        file.seek(0)
        coding = next((named for magic, named in MAGIC.items() if start.startswith(magic)), "")
    if not coding:
        return file
    return inflating(file, size, coding, limit)
