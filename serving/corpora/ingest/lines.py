"""Line formats: NDJSON and plain text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from serving.corpora.ingest.rows import CHARSET_ADVICE, EXPIRES_AT, VECTOR, Row, absent, json_value, row_bytes, utf8
from serving.errors import Invalid, Malformed, ServiceError, TooLarge
from serving.operations.json_body import misfit
from serving.operations.threads import check_cancelled
from serving.settings import Settings

_SHOWN = 80
BOM = b"\xef\xbb\xbf"
PIECE = 65_536
NOT_LINES = (
    "must be a document, as a JSON object on one line; for a list of documents, or for JSON over several lines, "
    "use application/json or the suffix .json"
)


def lines(stream: BinaryIO, limit: int) -> Iterator[tuple[int, bytes | TooLarge]]:
    """Yield the number of each line, counted from 1, and the line with its line end. A byte order mark is removed.

    A line of more than `limit` bytes is replaced by an error. The rest of such a line is skipped in pieces, so the
    whole line is never in memory.

    Raises:
        Stopped: the current work was cancelled.
    """
    number = 0
    while line := stream.readline(limit + 1):
        check_cancelled()
        number += 1
        if len(line) > limit and not line.endswith(b"\n"):
            while (rest := stream.readline(PIECE)) and not rest.endswith(b"\n"):
                check_cancelled()
            yield number, TooLarge(f"more than the {limit} bytes of one row")
        else:
            yield number, line.removeprefix(BOM) if number == 1 else line


def ndjson_rows(stream: BinaryIO, settings: Settings, text_field: str = "text") -> Iterator[Row]:
    """Yield one JSON document per line, skipping blank lines.

    A line is an error if it is a list, or an object with a list `documents` and without the field `text_field`.
    """
    for number, line in lines(stream, row_bytes(settings)):
        if isinstance(line, ServiceError):
            yield Row(f"line {number}", line)
        elif line and not line.isspace():
            value = json_value(line)
            is_body = isinstance(value, dict) and isinstance(value.get("documents"), list) and text_field not in value
            is_list = isinstance(value, list) or is_body
            cut = isinstance(value, Malformed) and line.rstrip().endswith((b"[", b"{", b","))
            yield Row(f"line {number}", Invalid(NOT_LINES) if is_list or cut else value)


def text_rows(stream: BinaryIO, settings: Settings) -> Iterator[Row]:
    """Yield one text per line, skipping blank lines."""
    for number, line in lines(stream, settings.max_text_bytes + len(b"\r\n")):
        text = line if isinstance(line, ServiceError) else utf8(line.rstrip(b"\r\n"), CHARSET_ADVICE)
        if isinstance(text, ServiceError):
            yield Row(f"line {number}", text)
        elif text and not text.isspace():
            yield Row(f"line {number}", {"text": text})


# A JSON object may have fields for the text, the id, the vector and the time of expiry. All other fields are metadata,
# as in a table.


def read_fields(row: Row, text_field: str | None, id_field: str | None) -> Row:
    """Return a row with the raw document of a JSON object. If the object is invalid, return a row with an error.

    Args:
        row: the row, whose value should be an object. A row with another value is returned unchanged.
        text_field: name of the field with the text, `text` by default.
        id_field: name of the field with the id, `id` by default. If `id_field` is given, each object must have this
            field. If `text_field` is `id` and `id_field` is not given, the document has no id.
    """
    if not isinstance(row.value, dict):
        return row
    text, id = text_field or "text", id_field or "id"
    if id_field is not None and id not in row.value:
        return row._replace(value=Invalid(f"is required; {absent(id, row.value, 'field', 'id_column')}", field=id))
    hint = "" if text in row.value else f"; {absent(text, row.value, 'field')}"
    others = {name: value for name, value in row.value.items() if value is not None and name not in (text, id)}
    own = {name: others.pop(name) for name in (VECTOR, EXPIRES_AT) if name in others}
    try:
        metadata = _together(others.pop("metadata", {}), others)
    except Invalid as error:
        return row._replace(value=error)
    name = row.value.get(id) if id_field or id != text else None
    value = {"text": row.value.get(text), "id": name, "metadata": metadata, **own}
    return Row(row.place, value, text_field=text, id_field=id, hint=hint)


def with_metadata(row: Row, more: dict[str, Any]) -> Row:
    """Return `row` with the additional metadata `more` in its raw document. A row without a document stays unchanged.

    If a field of `more` is also in the document's own metadata, or can't be stored, return a row with an error.
    """
    if not isinstance(row.value, dict):
        return row
    try:
        return row._replace(value={**row.value, "metadata": _together(row.value.get("metadata", {}), more)})
    except Invalid as error:
        return row._replace(value=error)


def _together(metadata: Any, others: dict[str, Any]) -> Any:
    """Merge `others` into `metadata`. If `metadata` is not an object, return it unchanged; a later check refuses it.

    Raises:
        Invalid: a field is in both `metadata` and `others`, or a field in `others` can't be stored.
    """
    if not isinstance(metadata, dict):
        return metadata
    for name, value in others.items():
        if name in metadata:
            raise Invalid("is also a field of metadata", field=name[:_SHOWN])
        if wrong := misfit({name: value}):
            raise Invalid(wrong[1], field=wrong[0])
    return metadata | others
