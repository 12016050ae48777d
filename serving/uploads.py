"""Uploaded rows become documents: each is checked, and what is wrong is named by row and field."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import orjson

from serving.bounds import check_text
from serving.errors import Empty, Invalid, ServiceError, TooLarge
from serving.json_body import check_containers, parse_exact, unwritable
from serving.names import check_document_id
from serving.ports import Document
from serving.settings import Settings


class Row(NamedTuple):
    """One document as it came, and what to call it in an error: `documents.3`, `line 4`."""

    place: str
    value: Any


class Rejected(NamedTuple):
    """A row that was left out."""

    place: str
    error: str


@dataclass
class Upload:
    """What is to be stored, and with `on_error=skip` what is not."""

    documents: list[Document] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


def json_rows(body: Any) -> Iterator[Row]:
    """The rows of `{"documents": [...]}`."""
    documents = body.get("documents") if isinstance(body, dict) else None
    if not isinstance(documents, list):
        raise Invalid("must be a list of documents", field="documents")
    return (Row(f"documents.{i}", document) for i, document in enumerate(documents))


def ndjson_rows(body: bytes) -> Iterator[Row]:
    """One document a line; empty lines are passed over. A line that is not JSON keeps its error as its value.

    Raises:
        TooLarge: too many lists and objects over all lines.
    """
    check_containers(body)
    return (Row(f"line {n}", _line(line)) for n, line in enumerate(io.BytesIO(body), 1) if not line.isspace())


def read_upload(given: Iterable[Row], settings: Settings, *, skip_errors: bool) -> Upload:
    """Check every row; of more than one upload takes, none is looked at.

    Raises:
        Empty, TooLarge: no rows, or more than one upload takes.
        ServiceError: of the first bad row, unless `skip_errors`.
    """
    limit = settings.max_upload_documents
    rows = list(islice(given, limit + 1))
    if not rows:
        raise Empty("must hold at least one document", field="documents")
    if len(rows) > limit:
        raise TooLarge(f"more than the {limit} of one upload: split it", field="documents")
    upload, places = Upload(), dict[str, str]()
    for row in rows:
        try:
            document = _document(row, settings)
            if document.id in places:
                raise Invalid(f"{document.id!r} is already the id of {places[document.id]}", field=f"{row.place}.id")
        except ServiceError as error:
            if not skip_errors:
                raise
            upload.rejected.append(Rejected(row.place, error.message))
        else:
            places[document.id] = row.place
            upload.documents.append(document)
    return upload


def _line(line: bytes) -> Any:
    try:
        return parse_exact(line)
    except ServiceError as error:
        return error


def _document(row: Row, settings: Settings) -> Document:
    if isinstance(row.value, ServiceError):
        raise type(row.value)(row.value.message, field=row.place)
    if not isinstance(row.value, dict):
        raise Invalid("must be an object", field=row.place)
    given = {key: value for key, value in row.value.items() if value is not None}
    text, name, metadata = given.get("text"), given.get("id", uuid.uuid4().hex), given.get("metadata", {})
    if not isinstance(text, str):
        raise Invalid("must be a string" if "text" in given else "is required", field=f"{row.place}.text")
    if not isinstance(name, str):
        raise Invalid("must be a string", field=f"{row.place}.id")
    check_document_id(name, f"{row.place}.id")
    check_text(text, settings.max_text_bytes, f"{row.place}.text")
    _check_metadata(metadata, settings.max_metadata_bytes, f"{row.place}.metadata")
    return Document(name, text, metadata)


def _check_metadata(metadata: Any, limit: int, field: str) -> None:
    if not isinstance(metadata, Mapping):
        raise Invalid("must be an object", field=field)
    if reason := unwritable(metadata):
        raise Invalid(reason, field=field)
    if (size := len(orjson.dumps(metadata))) > limit:
        raise TooLarge(f"{size} bytes are more than the {limit} of one document's metadata", field=field)
