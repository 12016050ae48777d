"""Options of an upload, and the reader of an upload's rows."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import PurePath
from typing import Any, BinaryIO, Literal, Self

from pydantic import BaseModel, ConfigDict

from serving.corpora.ingest.charsets import codec, in_utf8, meta_charset
from serving.corpora.ingest.chunking import asked_chunking
from serving.corpora.ingest.json_documents import json_media, json_rows
from serving.corpora.ingest.lines import ndjson_rows, read_fields, text_rows, with_metadata
from serving.corpora.ingest.reading import check_installed, read
from serving.corpora.ingest.rows import Row
from serving.corpora.ingest.table import ColumnType, ColumnTypes, csv_rows, types_of
from serving.corpora.values import Chunking
from serving.errors import Invalid, Malformed, UnsupportedMedia
from serving.operations.encoding import inflating
from serving.operations.json_body import misfit, parse_exact
from serving.settings import Settings

Format = Literal["json", "ndjson", "csv", "text", "parquet", "arrow", "markdown", "html", "pdf", "docx"]
TABLES: frozenset[Format] = frozenset(("parquet", "arrow"))
"""Tables in binary formats. Their rows have named fields, as JSON documents do."""
FILES: frozenset[Format] = frozenset(("markdown", "html", "pdf", "docx"))
"""Formats of files that people read. The sections or pages of such a file become documents."""
TEXTS: frozenset[Format] = frozenset(("csv", "text", "markdown", "html"))
"""Formats that may have any charset. JSON is always UTF-8 (RFC 8259)."""
BINARY: frozenset[Format] = TABLES | frozenset(("pdf", "docx"))
PARSED = TABLES | FILES
"""Formats that a child process reads."""
Split = Literal["section", "file"]
_NAMES: dict[Format, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "json": ((".json",), ("application/json",)),
    "ndjson": (
        (".jsonl", ".ndjson"),
        (
            *("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonl"),
            *("application/jsonlines", "application/x-jsonlines"),
        ),
    ),
    "csv": ((".csv", ".tsv"), ("text/csv", "application/csv", "text/tab-separated-values")),
    "text": ((".txt",), ("text/plain",)),
    "parquet": ((".parquet",), ("application/vnd.apache.parquet", "application/x-parquet")),
    "arrow": (
        (".arrow", ".arrows", ".feather"),
        ("application/vnd.apache.arrow.file", "application/vnd.apache.arrow.stream"),
    ),
    "markdown": ((".md", ".markdown"), ("text/markdown", "text/x-markdown")),
    "html": ((".html", ".htm", ".xhtml"), ("text/html", "application/xhtml+xml")),
    "pdf": ((".pdf",), ("application/pdf",)),
    "docx": ((".docx",), ("application/vnd.openxmlformats-officedocument.wordprocessingml.document",)),
}
"""Suffixes of files, and content types, of each format. The first content type is the one that our client sends."""
SUFFIXES: dict[str, Format] = {suffix: format for format, (suffixes, _) in _NAMES.items() for suffix in suffixes}
MEDIA: dict[str, Format] = {media: format for format, (_, types) in _NAMES.items() for media in types}
PACKED = (".gz", ".zst")
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of compressed files (RFC 1952, RFC 8878). No text begins with them."""


class Options(BaseModel):
    """Options of an upload. A job stores them as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Format
    coding: str = ""
    """`gzip` or `zstd`. If it is empty, the compression is detected from the first bytes."""
    charset: str = ""
    """Python's codec of the upload's charset, from `charsets.codec`."""
    source: str = ""
    """Name of the file, if it is known. It becomes a part of the ids and the metadata of the file's sections or
    pages."""
    split: Split | None = None
    """Unit that becomes one document: each section or page (the default), or the whole file."""
    metadata: dict[str, Any] = {}
    """Metadata that are added to those of every document in the upload."""
    text_column: str | None = None
    """Name of the column, or of the JSON field, that contains the text."""
    id_column: str | None = None
    column_types: ColumnTypes = "header"
    """With `header`, the header gives the types of CSV columns. With `auto`, a type that the header does not give is
    inferred from all values of the column. A dictionary gives the types of some columns."""
    on_error: Literal["fail", "skip"] = "fail"
    """With `fail`, an invalid row makes the whole upload fail. With `skip`, only valid rows are stored."""
    chunk_tokens: int | None = None
    chunk_overlap: int | None = None
    embedded_by: str = ""
    """Fingerprint of the encoder that computed the documents' vectors. If it is empty, the documents are embedded,
    except in a corpus with own vectors."""
    naming: str = ""
    """UUID namespace for the ids of rows without ids, from the idempotency key. If the namespace is empty, the job's id
    is used instead. The namespace is not part of the job's digest."""

    @classmethod
    def of_media(cls, media: str, charset: str | None = None, **others: Any) -> Self:
        """Return options for an upload with the content type `media`. `others` are values of further fields.

        Raises:
            UnsupportedMedia: the content type is unknown, the charset is not supported, or the package that reads the
                format is not installed.
        """
        if media.startswith("application/") and media.endswith("+json"):
            media = "application/json"
        if media not in MEDIA:
            raise UnsupportedMedia(
                "documents come as application/json, application/x-ndjson, text/csv, text/plain, text/markdown, "
                "text/html, application/pdf, DOCX, Parquet or Arrow, or as such a file in multipart/form-data, "
                f"not as {media[:80]}"
            )
        return cls.of_format(MEDIA[media], charset, **others)

    @classmethod
    def of_file(cls, name: PurePath, charset: str | None = None, **others: Any) -> Self:
        """Return options for a file name, whose suffix selects the format; `.gz` and `.zst` are ignored.

        Raises:
            UnsupportedMedia: the suffix is unknown; or see `of_format`.
        """
        suffix = suffix_of(name)
        if suffix not in SUFFIXES:
            known = f"{', '.join(SUFFIXES)}, followed by {' or '.join(PACKED)} if the file is compressed"
            called = repr(name.name[:80]) if name.name else "a file without a name"
            raise UnsupportedMedia(f"{called}: the name of a file with documents must end in {known}")
        return cls.of_format(SUFFIXES[suffix], charset, **{"source": name.as_posix()} | others)

    @classmethod
    def of_part(cls, name: PurePath, media: str, charset: str | None = None, **others: Any) -> Self:
        """Return options for a file in a multipart body.

        The file's name selects the format, because browsers often send a wrong content type. If the suffix is unknown,
        the content type selects the format.

        Raises:
            UnsupportedMedia: both the suffix and the content type are unknown; or see `of_format`.
        """
        if suffix_of(name) in SUFFIXES or media not in MEDIA:
            return cls.of_file(name, charset, **others)
        return cls.of_media(media, charset, **{"source": name.as_posix() if name.name else ""} | others)

    @classmethod
    def of_format(cls, format: Format, charset: str | None = None, **others: Any) -> Self:
        """Return options for a format, with the other fields in `others`.

        The charset is ignored unless the format is in `TEXTS`. The field `source` is ignored unless the format is in
        `FILES`.

        Raises:
            UnsupportedMedia: the charset is not supported, or the package that reads the format is not installed.
        """
        check_installed(format)
        if format not in FILES:
            others.pop("source", None)
        return cls(format=format, charset=codec(charset) if charset and format in TEXTS else "", **others)

    @property
    def types(self) -> dict[str, ColumnType]:
        return self.column_types if isinstance(self.column_types, dict) else {}

    @property
    def chunking(self) -> Chunking | None:
        """The requested chunking, or None if texts are not split. Wrong options raise `Invalid`."""
        return asked_chunking(self.chunk_tokens, self.chunk_overlap)


def suffix_of(name: PurePath) -> str:
    """Return the suffix that selects the format, in lower case. Suffixes of compression such as `.gz` are ignored."""
    return (name.with_suffix("") if name.suffix.lower() in PACKED else name).suffix.lower()


def read_metadata(text: str) -> dict[str, Any]:
    """Parse the metadata for all documents of an upload. Raise `Invalid` if they can't be stored."""
    try:
        metadata = parse_exact(text.encode("utf-8", "surrogatepass"))
    except Malformed as error:
        raise Invalid(error.message, field="metadata") from None
    if not isinstance(metadata, dict):
        raise Invalid('must be a JSON object such as {"team": "support"}', field="metadata")
    if wrong := misfit(metadata):
        raise Invalid(wrong[1], field=f"metadata.{wrong[0]}")
    return metadata


def rows(file: BinaryIO, options: Options, settings: Settings, most: int | None = None) -> Iterator[Row]:
    """Yield the rows of a seekable file, from its beginning. If a row can't be read, its value is the error.

    Args:
        most: maximum number of rows from which the types of columns are inferred. If the file has more rows, the caller
            must discard all rows, because later rows may not have these types.

    Raises:
        Malformed, Invalid, Empty, TooLarge: the file has an error that is not limited to one row, or an option is
            wrong.
    """
    for option in ("text_column", "id_column"):
        if getattr(options, option) == "":
            raise Invalid("must not be empty", field=option)
    types = options.types
    if types and options.format != "csv":
        raise Invalid("only columns of CSV can get types", field="column_types")
    if options.split and options.format not in FILES:
        raise Invalid("only Markdown, HTML, PDF and DOCX can be split", field="split")
    for option in ("text_column", "id_column"):
        if getattr(options, option) and options.format in FILES:
            raise Invalid("only tables and JSON have columns or fields", field=option)
    columns, found = (options.text_column, options.id_column, types), dict[str, str]()
    if options.format == "csv" and (options.column_types == "auto" or "auto" in types.values()):
        found = types_of(islice(csv_rows(_begun(file, options, settings), settings, *columns), most))
        if types:
            found = {name: kind for name, kind in found.items() if types.get(name) == "auto"}
    found_rows = _rows(_begun(file, options, settings), options, settings, found)
    return (with_metadata(row, options.metadata) for row in found_rows) if options.metadata else found_rows


def _rows(stream: BinaryIO, options: Options, settings: Settings, found: Mapping[str, str]) -> Iterator[Row]:
    match options.format:
        case "json":
            return _fields(json_rows(stream, settings), options)
        case "ndjson":
            return _fields(ndjson_rows(stream, settings, options.text_column or "text"), options)
        case "csv":
            return csv_rows(stream, settings, options.text_column, options.id_column, options.types, found=found)
        case "text":
            return text_rows(stream, settings)
    given = read(stream, options.format, settings, source=options.source, split=options.split or "section")
    return _fields(given, options) if options.format in TABLES else given


def check_is_text(file: BinaryIO, options: Options, settings: Settings) -> None:
    """Raise an error if JSON was sent as text/plain. A browser's `fetch` gives this type to every string.

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
    def begun() -> BinaryIO:
        return _unpacked(file, options.coding, settings.max_upload_bytes)

    if options.format in BINARY:
        return begun()
    charset = options.charset or (meta_charset(begun()) if options.format == "html" else "")
    return in_utf8(begun, charset)


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
