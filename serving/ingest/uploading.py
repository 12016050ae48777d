"""How an upload is to be read and kept: its format, how it is packed, what becomes of bad rows and of long texts."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, BinaryIO, Literal, Self, cast

from pydantic import BaseModel, ConfigDict

from serving.encoding import Inflating
from serving.errors import Invalid, UnsupportedMedia
from serving.ingest.chunking import asked_chunking
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
    "application/x-jsonlines": "ndjson",
    "text/csv": "csv",
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
UTF8 = (None, "utf-8", "utf8", "us-ascii", "ascii")
"""What UTF-8 is called, or a part of it."""
PACKED = (".gz", ".zst")
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""How packed bytes begin (RFC 1952, RFC 8878); no text does."""
BUFFER = 1 << 18


class Options(BaseModel):
    """What is known of an upload beside its bytes; a job keeps it as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Format
    coding: str = ""
    """`gzip` or `zstd`; without one it is found out."""
    text_column: str | None = None
    """A column of CSV, a field of JSON."""
    id_column: str | None = None
    on_error: Literal["fail", "skip"] = "fail"
    """Whether a bad row is all that is left out."""
    chunk_tokens: int | None = None
    chunk_overlap: int | None = None

    @classmethod
    def of_media(cls, media: str, charset: str | None = None, **others: Any) -> Self:
        """By the content type.

        Raises:
            UnsupportedMedia: documents do not come so, or text not as UTF-8.
        """
        if media.startswith("application/") and media.endswith("+json"):
            media = "application/json"
        if media not in MEDIA:
            raise UnsupportedMedia(
                "documents come as application/json, application/x-ndjson, text/csv, text/plain, or as such a file in "
                f"multipart/form-data, not as {media[:80]}"
            )
        if media.startswith("text/") and charset not in UTF8:
            raise UnsupportedMedia(f"charset {str(charset)[:40]!r} is not read, only UTF-8", field="content-type")
        return cls(format=MEDIA[media], **others)

    @classmethod
    def of_file(cls, name: PurePath, **others: Any) -> Self:
        """By the suffix of a file's name, `.gz` and `.zst` apart.

        Raises:
            UnsupportedMedia: it has another.
        """
        suffix = (name.with_suffix("") if name.suffix.lower() in PACKED else name).suffix.lower()
        if suffix not in SUFFIXES:
            known = f"{', '.join(SUFFIXES)}, with {' or '.join(PACKED)} behind it where it is packed"
            raise UnsupportedMedia(f"{name.name[:80]!r}: the name of a file of documents ends in {known}")
        return cls(format=SUFFIXES[suffix], **others)

    @classmethod
    def of_part(cls, name: PurePath, media: str, **others: Any) -> Self:
        """By the name of a file, which says more than the type that a browser gives it, else by that."""
        try:
            return cls.of_file(name, **others)
        except UnsupportedMedia:
            if media not in MEDIA:
                raise
        return cls.of_media(media, **others)

    @property
    def chunking(self) -> Chunking | None:
        """How long texts are to be cut, if they are.

        Raises:
            Invalid: not so.
        """
        return asked_chunking(self.chunk_tokens, self.chunk_overlap)


def rows(file: BinaryIO, options: Options, settings: Settings) -> Iterator[Row]:
    """The rows of a file that can be sought, from its beginning. A row that can't be read is one whose value says why.

    Raises:
        Malformed, Invalid, Empty, TooLarge: what can't be read is more than a row, or an option names nothing.
    """
    for option in ("text_column", "id_column"):
        if getattr(options, option) == "":
            raise Invalid("must not be empty", field=option)
    stream = _unpacked(file, options.coding, settings.max_upload_bytes)
    match options.format:
        case "json":
            return _fields(json_rows(stream, settings), options)
        case "ndjson":
            return _fields(ndjson_rows(stream, settings), options)
        case "csv":
            return csv_rows(stream, settings, options.text_column, options.id_column)
        case "text":
            return text_rows(stream, settings)


def check_is_text(file: BinaryIO, options: Options, settings: Settings) -> None:
    """Refuse JSON that was sent as text/plain, which is the type that a browser's `fetch` gives to every string.

    Raises:
        UnsupportedMedia: `file` begins as documents in JSON do; the message names the type to send.
    """

    def begun() -> BinaryIO:
        return _unpacked(file, options.coding, settings.max_upload_bytes)

    if options.format == "text" and (media := json_media(begun, settings)):
        raise UnsupportedMedia(
            f"the body is JSON: send it as {media}, not as text/plain. To store each line of it as a text, send it in "
            "multipart/form-data as a file whose name ends in .txt",
            field="content-type",
        )


def _fields(found: Iterator[Row], options: Options) -> Iterator[Row]:
    return (read_fields(row, options.text_column, options.id_column) for row in found)


def _unpacked(file: BinaryIO, coding: str, limit: int) -> BinaryIO:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if not coding:
        start = file.read(max(map(len, MAGIC)))
        file.seek(0)
        coding = next((named for magic, named in MAGIC.items() if start.startswith(magic)), "")
    if not coding:
        return file
    return cast("BinaryIO", io.BufferedReader(Inflating(file, size, coding, limit), BUFFER))
