"""How an upload is to be read and kept: its format, how it is packed, what becomes of bad rows and of long texts."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from pathlib import PurePath
from typing import Any, BinaryIO, Literal, Self

from pydantic import BaseModel, ConfigDict

from serving.encoding import inflating
from serving.errors import Invalid, UnsupportedMedia
from serving.ingest.charsets import codec, in_utf8
from serving.ingest.chunking import asked_chunking
from serving.ingest.columns import ColumnTypes, types_of
from serving.ingest.fields import read_fields
from serving.ingest.json_documents import json_media, json_rows
from serving.ingest.lines import ndjson_rows, text_rows
from serving.ingest.rows import Row
from serving.ingest.table import csv_rows
from serving.ports import Chunking
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
"""How packed bytes begin (RFC 1952, RFC 8878); no text does."""


class Options(BaseModel):
    """What is known of an upload beside its bytes; a job keeps it as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Format
    coding: str = ""
    """`gzip` or `zstd`; without one it is found out."""
    charset: str = ""
    """As `charsets.codec` names it."""
    text_column: str | None = None
    """A column of CSV, a field of JSON."""
    id_column: str | None = None
    column_types: ColumnTypes = "header"
    """Of CSV: where the types come from, or those of some columns. `auto` is the type of all fields of a column, if
    the header names none."""
    on_error: Literal["fail", "skip"] = "fail"
    """Whether a bad row is all that is left out."""
    chunk_tokens: int | None = None
    chunk_overlap: int | None = None

    @classmethod
    def of_media(cls, media: str, charset: str | None = None, **others: Any) -> Self:
        """By the content type.

        Raises:
            UnsupportedMedia: documents do not come so, or not in this charset.
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
        """By the suffix of a file's name, `.gz` and `.zst` apart.

        Raises:
            UnsupportedMedia: it has another, or the charset is not read.
        """
        suffix = (name.with_suffix("") if name.suffix.lower() in PACKED else name).suffix.lower()
        if suffix not in SUFFIXES:
            known = f"{', '.join(SUFFIXES)}, with {' or '.join(PACKED)} behind it where it is packed"
            called = repr(name.name[:80]) if name.name else "a file without a name"
            raise UnsupportedMedia(f"{called}: the name of a file of documents ends in {known}")
        return cls._of(SUFFIXES[suffix], charset, others)

    @classmethod
    def of_part(cls, name: PurePath, media: str, charset: str | None = None, **others: Any) -> Self:
        """By the name of a file, which says more than the type that a browser gives it, else by that."""
        try:
            return cls.of_file(name, charset, **others)
        except UnsupportedMedia:
            if media not in MEDIA:
                raise
        return cls.of_media(media, charset, **others)

    @classmethod
    def _of(cls, format: Format, charset: str | None, others: dict[str, Any]) -> Self:
        """JSON has no charset but UTF-8 (RFC 8259), whatever its content type says."""
        return cls(format=format, charset=codec(charset) if charset and format in ("csv", "text") else "", **others)

    @property
    def chunking(self) -> Chunking | None:
        """How long texts are to be cut, if they are.

        Raises:
            Invalid: not so.
        """
        return asked_chunking(self.chunk_tokens, self.chunk_overlap)


def rows(file: BinaryIO, options: Options, settings: Settings, most: int | None = None) -> Iterator[Row]:
    """The rows of a file that can be sought, from its beginning. A row that can't be read is one whose value says why.

    Args:
        most: whoever reads more rows does not keep them: types of columns are found in so many.

    Raises:
        Malformed, Invalid, Empty, TooLarge: what can't be read is more than a row, or an option names nothing.
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
    """Refuse JSON that was sent as text/plain, which is the type that a browser's `fetch` gives to every string.

    Raises:
        UnsupportedMedia: `file` begins as documents in JSON do; the message names the type to send.
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
