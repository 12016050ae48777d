"""Documents of a corpus: add, list, get, delete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import BeforeValidator

from serving.api.answers import json_response, truncation_header
from serving.api.corpus_schemas import DeleteAnswer, DeleteRequest, DocumentAnswer, DocumentsAnswer, UploadAnswer
from serving.api.deps import CorpusName, DocumentId, ServiceDep
from serving.api.route import Route, is_json, media_type
from serving.api.schemas import lower
from serving.errors import Invalid, Malformed, UnsupportedMedia
from serving.filters import compile_filter
from serving.json_body import parse_exact
from serving.names import MAX_ID_BYTES
from serving.ports import Document
from serving.uploads import Row, json_rows, ndjson_rows, read_upload

router = APIRouter(prefix="/corpora/{name}/documents", tags=["documents"], route_class=Route)

NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
_ROW: dict[str, Any] = {
    "type": "object",
    "required": ["text"],
    "properties": {
        "id": {"type": ["string", "null"], "minLength": 1, "maxLength": MAX_ID_BYTES},
        "text": {"type": "string"},
        "metadata": {"type": ["object", "null"]},
    },
    "example": {"id": "a", "text": "A text to find.", "metadata": {"lang": "en"}},
}
_UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["documents"],
                    "properties": {"documents": {"type": "array", "items": _ROW, "minItems": 1}},
                }
            },
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "example": '{"id": "a", "text": "A text to find."}\n{"text": "Another."}\n',
            },
        },
    }
}


def _refuse_promises(
    in_background: Annotated[bool, Query(alias="async", description="not there yet: true is refused")] = False,
    idempotency_key: Annotated[str | None, Header(description="not there yet: refused")] = None,
) -> None:
    """Who asks for what this server can't do must hear of it, not be answered as if it had."""
    if in_background:
        raise Invalid("background jobs are not there yet; split the upload", field="async")
    if idempotency_key is not None:
        raise Invalid(
            "not there yet; give the documents ids: the same id replaces, so a retry is safe", field="Idempotency-Key"
        )


@router.post(
    "",
    response_model=UploadAnswer,
    summary="Add or replace documents",
    openapi_extra=_UPLOAD,
    dependencies=[Depends(_refuse_promises)],
)
async def add(
    name: CorpusName,
    request: Request,
    service: ServiceDep,
    on_error: Annotated[
        Literal["fail", "skip"], BeforeValidator(lower), Query(description="skip keeps the good rows")
    ] = "fail",
) -> Response:
    """Durable and searchable on return, all or none. The same id replaces; without an id one is made.

    `x-truncated-inputs` counts the texts longer than the model reads: stored whole, embedded in part.
    """
    rows = await _rows(request)
    upload = read_upload(rows, service.settings, skip_errors=on_error == "skip")
    truncated = await service.add(name, upload.documents)
    answer: dict[str, Any] = {"ids": [document.id for document in upload.documents], "count": len(upload.documents)}
    if on_error == "skip":
        answer["errors"] = [rejected._asdict() for rejected in upload.rejected]
    return json_response(answer, headers=truncation_header(truncated))


@router.get("", summary="List documents")
async def listing(
    name: CorpusName,
    service: ServiceDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: str | None = None,
) -> DocumentsAnswer:
    """Oldest first; a replaced document counts as new."""
    after = _cursor(cursor)
    documents, following = await service.on_corpora(lambda corpora: corpora.page(name, after, limit), of=name)
    return DocumentsAnswer(
        documents=[_answer(document) for document in documents],
        cursor=None if following is None else str(following),
    )


@router.delete("", summary="Delete documents by filter")
async def delete_where(name: CorpusName, body: DeleteRequest, service: ServiceDep) -> DeleteAnswer:
    """Every document whose metadata matches."""
    if not body.filter:
        raise Invalid("would match everything; to empty a corpus, delete it", field="filter")
    where = compile_filter(body.filter)
    return DeleteAnswer(deleted=await service.on_corpora(lambda corpora: corpora.delete_where(name, where), of=name))


@router.get("/{id:path}", summary="Get a document")
async def get(name: CorpusName, id: DocumentId, service: ServiceDep) -> DocumentAnswer:
    """By its id."""
    return _answer(await service.on_corpora(lambda corpora: corpora.document(name, id), of=name))


@router.delete("/{id:path}", status_code=204, summary="Delete a document")
async def delete(name: CorpusName, id: DocumentId, service: ServiceDep) -> None:
    """By its id; it stays deleted."""
    await service.on_corpora(lambda corpora: corpora.delete(name, id), of=name)


async def _rows(request: Request) -> Iterator[Row]:
    media, body = media_type(request), await request.body()
    if media in NDJSON:
        return ndjson_rows(body)
    if not is_json(media):
        raise UnsupportedMedia(f"documents come as application/json or application/x-ndjson, not {media}")
    if not body:
        raise Malformed("the body is empty")
    return json_rows(parse_exact(body))


def _cursor(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 18):
        raise Invalid("not a cursor of this server", field="cursor")
    return int(cursor)


def _answer(document: Document) -> DocumentAnswer:
    return DocumentAnswer(id=document.id, text=document.text, metadata=dict(document.metadata))
