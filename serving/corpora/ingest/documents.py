"""Conversion of rows to documents. Each row is checked, and errors name row and field."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from serving.corpora.ingest.rows import EXPIRES_AT, VECTOR, Row
from serving.corpora.ingest.vectors import VectorRule
from serving.corpora.values import Document
from serving.errors import Empty, Invalid, ServiceError
from serving.operations.bounds import check_document_id, check_metadata, check_text
from serving.operations.clock import moment
from serving.operations.json_body import FITS, LEAST, MOST
from serving.settings import Settings

Naming = Callable[[int], str]
"""Function that returns the id of a document from the number of its row, counted from 0. It is called for rows without
an id."""


class Rejected(NamedTuple):
    """A row that is not stored, because it is invalid."""

    place: str
    error: str


@dataclass
class Upload:
    """Documents to store and, with `on_error=skip`, the rows that are not stored."""

    documents: list[Document] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


def random_names(number: int) -> str:  # noqa: ARG001 - a `Naming`
    """Return a random id. A row that is read a second time would get another id; see `names_within`."""
    return uuid.uuid4().hex


def names_within(space: uuid.UUID) -> Naming:
    """Return a `Naming` that gives each row number always the same id, so that rows keep their ids if read again."""
    return lambda number: uuid.uuid5(space, str(number)).hex


class Checked(NamedTuple):
    """A row with its document, or with the error that makes the row invalid."""

    number: int
    place: str
    document: Document | None
    error: ServiceError | None = None
    id_field: str = "id"


def checked(given: Iterable[Row], settings: Settings, naming: Naming, rule: VectorRule) -> Iterator[Checked]:
    for number, row in enumerate(given):
        try:
            yield Checked(number, row.place, document_of(row, settings, number, naming, rule), id_field=row.id_field)
        except ServiceError as error:
            yield Checked(number, row.place, None, error)


def unrepeated(rows: Iterable[Checked]) -> Iterator[Checked]:
    """Yield `rows`. If a document has the id of an earlier document, replace the later document by an error."""
    places = dict[str, str]()
    for row in rows:
        if row.document and (place := places.setdefault(row.document.id, row.place)) != row.place:
            field = f"{row.place}.{row.id_field}"
            again = Invalid(f"{row.document.id!r} is already the id of {place}", field=field)
            yield row._replace(document=None, error=again)
        else:
            yield row


def read_upload(
    given: Iterable[Row], settings: Settings, rule: VectorRule, *, skip_errors: bool, naming: Naming = random_names
) -> Upload | None:
    """Read an upload that is small enough to be stored at once, without a job.

    Return the documents and, with `skip_errors`, the invalid rows. If the upload has too many documents or too many
    characters, return None.

    Raises:
        Empty: there are no rows.
        ServiceError: a row is invalid, and `skip_errors` is false. This is the error of the first invalid row.
    """
    upload, characters = Upload(), 0
    for row in unrepeated(checked(given, settings, naming, rule)):
        if row.number == settings.max_upload_documents or characters > settings.max_body_bytes:
            return None
        if row.document:
            upload.documents.append(row.document)
            characters += row.document.length
        elif row.error:
            if not skip_errors:
                raise row.error
            upload.rejected.append(Rejected(row.place, row.error.message))
    if not (upload.documents or upload.rejected):
        raise empty()
    return upload


def empty() -> Empty:
    return Empty("must contain at least one document", field="documents")


def document_of(row: Row, settings: Settings, number: int, naming: Naming, rule: VectorRule) -> Document:
    """Return the document of a row. `number` is the number of the row, from which `naming` computes a missing id.

    Raises:
        Invalid, TooLarge, Malformed, Conflict: the row is not a valid document of the corpus. The error's `field`
            begins with the place of the row in the upload.
    """
    if isinstance(row.value, ServiceError):
        raise type(row.value)(row.value.message, field=row.place)
    if not isinstance(row.value, dict):
        raise Invalid("must be an object", field=row.place)
    text, name, metadata = row.value.get("text"), row.value.get("id"), row.value.get("metadata", {})
    text_field, id_field = f"{row.place}.{row.text_field}", f"{row.place}.{row.id_field}"
    if not isinstance(text, str):
        raise Invalid(f"is required{row.hint}" if text is None else "must be a string", field=text_field)
    if name is None:
        name = naming(number)
    if type(name) is int and LEAST <= name <= MOST:  # `isinstance` would accept True, too
        name = str(name)
    if not isinstance(name, str):
        raise Invalid(f"must be a string or an integer {FITS}", field=id_field)
    check_document_id(name, id_field)
    check_text(text, settings.max_text_bytes, text_field)
    check_metadata(metadata, settings.max_metadata_bytes, f"{row.place}.metadata")
    expires_at = row.value.get(EXPIRES_AT)
    return Document(
        name,
        text,
        metadata,
        rule.vector(row.value.get(VECTOR), f"{row.place}.{VECTOR}"),
        None if expires_at is None else moment(expires_at, f"{row.place}.{EXPIRES_AT}"),
    )
