"""Route for document uploads.

A small upload is stored before the answer. A large upload becomes a job.
"""

from __future__ import annotations

from functools import partial
from pathlib import PurePath
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import BeforeValidator

from serving.api.jobs import ACCEPTED, response_of, submitted
from serving.api.routing.answers import json_response, truncation_header
from serving.api.routing.auth import key_of
from serving.api.routing.deps import CLOSED, CorpusName, ServiceDep
from serving.api.routing.request_body import BoundedRequest
from serving.api.routing.route import StreamedRoute, charset, media_type, while_connected
from serving.api.schemas.bodies import lower
from serving.api.schemas.corpora import UploadAnswer
from serving.corpora.ingest.chunking import MIN_TOKENS, asked_chunking
from serving.corpora.ingest.documents import Upload, names_within, random_names, read_upload
from serving.corpora.ingest.multipart import FilePart
from serving.corpora.ingest.table import read_column_types
from serving.corpora.ingest.uploading import PARSED, Options, Split, check_is_text, read_metadata, rows
from serving.corpora.ingest.vectors import VectorRule
from serving.errors import UnsupportedMedia
from serving.jobs import Answer, Keyed, Spool
from serving.jobs.job import digest_of
from serving.jobs.ledger import check_key
from serving.jobs.spool import IN_MEMORY
from serving.jobs.upload_order import UPLOAD, check_stays
from serving.operations.bounds import MAX_COLUMN, MAX_COLUMN_TYPES, MAX_ID_BYTES, MAX_METADATA, MAX_VECTOR
from serving.operations.encoding import content_coding
from serving.operations.json_body import LEAST, MOST
from serving.operations.limits import check_no_debt
from serving.operations.threads import in_thread
from serving.service import Service

router = APIRouter(
    prefix="/corpora/{name}/documents", tags=["documents"], route_class=StreamedRoute, dependencies=CLOSED
)

_ROW: dict[str, Any] = {
    "type": "object",
    "required": ["text"],
    "properties": {
        "id": {
            "type": ["string", "integer", "null"],
            "minLength": 1,
            "maxLength": MAX_ID_BYTES,
            "minimum": LEAST,
            "maximum": MOST,
            "description": "Id of the document. An integer and the string of its decimal digits are the same id.",
        },
        "text": {"type": "string"},
        "metadata": {"type": ["object", "null"]},
        "vector": {
            "type": ["array", "null"],
            "items": {"type": "number"},
            "minItems": 1,
            "maxItems": MAX_VECTOR,
            "description": "Vector of the document. The server scales it to length 1. Required for a corpus with "
            "`vectors: own`, and with `embedded_by`. Refused otherwise.",
        },
        "expires_at": {
            "type": ["string", "null"],
            "format": "date-time",
            "description": "Time at which the document expires, in the format of RFC 3339. A time in the past is "
            "accepted.",
            "examples": ["2030-01-31T08:30:00Z"],
        },
    },
    "description": "A document. Fields that are not listed here become metadata.",
    "example": {"id": "a", "text": "A text to find.", "metadata": {"lang": "en"}},
}
BINARIES = (
    "application/vnd.apache.parquet",
    "application/vnd.apache.arrow.file",
    "application/vnd.apache.arrow.stream",
    "application/pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
)
_UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {
                            "type": "object",
                            "required": ["documents"],
                            "properties": {"documents": {"type": "array", "items": _ROW, "minItems": 1}},
                        },
                        {"type": "array", "items": _ROW, "minItems": 1},
                    ]
                }
            },
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "example": '{"id": "a", "text": "A text to find."}\n{"text": "Another."}\n',
            },
            "text/csv": {"schema": {"type": "string"}, "example": "id,text,year:number\na,A text to find.,2026\n"},
            "text/plain": {"schema": {"type": "string"}, "example": "A text to find.\nAnother.\n"},
            "text/markdown": {"schema": {"type": "string"}, "example": "# Install\n\nRun `make serve`.\n"},
            "text/html": {"schema": {"type": "string"}, "example": "<h1>Install</h1>\n<p>Run it.</p>\n"},
            **{media: {"schema": {"type": "string", "format": "binary"}} for media in BINARIES},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}},
                }
            },
        },
    }
}


async def _options(
    *,
    on_error: Annotated[
        Literal["fail", "skip"],
        BeforeValidator(lower),
        Query(
            description="Handling of invalid rows. `fail` refuses the upload at the first invalid row. `skip` "
            "stores only the valid rows."
        ),
    ] = "fail",
    text_column: Annotated[
        str | None,
        Query(max_length=MAX_COLUMN, description="Name of the column or JSON field with the text. Default: `text`."),
    ] = None,
    id_column: Annotated[
        str | None,
        Query(
            max_length=MAX_COLUMN,
            description="Name of the column or JSON field with the id. Default: `id`, if it exists.",
        ),
    ] = None,
    column_types: Annotated[
        str,
        Query(
            max_length=MAX_COLUMN_TYPES,
            description="Types of columns. `header` reads them from the CSV header (`year:number`). `auto` detects CSV "
            "columns of numbers, booleans or dates. A JSON object sets the types of some columns: auto, string, "
            "number, boolean or date.",
            examples=["auto", '{"year": "number", "zip": "string", "open": "auto"}'],
        ),
    ] = "header",
    source: Annotated[
        str | None,
        Query(
            max_length=MAX_ID_BYTES,
            description="Name of a Markdown, HTML, PDF or DOCX file. The name becomes a part of the ids and the "
            "metadata of the file's sections or pages. Default: the name of the uploaded file in "
            "multipart/form-data.",
            examples=["guide/install.md"],
        ),
    ] = None,
    metadata: Annotated[
        str,
        Query(
            max_length=MAX_METADATA,
            description="JSON object that is added to the metadata of every document in the upload.",
            examples=['{"team": "support"}'],
        ),
    ] = "{}",
    split: Annotated[
        Split | None,
        BeforeValidator(lower),
        Query(
            description="Unit that becomes one document in Markdown, HTML, PDF and DOCX. `section`: each section, "
            "or each page of a PDF. `file`: the whole file. Default: `section`."
        ),
    ] = None,
    chunk_tokens: Annotated[
        int | None,
        Query(
            ge=MIN_TOKENS, description="Maximum number of tokens in a passage. Longer texts are split into passages."
        ),
    ] = None,
    chunk_overlap: Annotated[
        int | None,
        Query(
            ge=0,
            description="Number of tokens that a passage shares with the previous passage. It is at most half of "
            "`chunk_tokens`.",
        ),
    ] = None,
    embedded_by: Annotated[
        str,
        Query(
            max_length=255,
            description="Fingerprint, as in `/info`, of the encoder that computed the `vector` of every document. "
            "It must be the corpus's encoder. The documents are then not embedded again. As a check, "
            "the server embeds one document of each block.",
        ),
    ] = "",
) -> dict[str, Any]:
    return {
        "on_error": on_error,
        "text_column": text_column,
        "id_column": id_column,
        "column_types": read_column_types(column_types),
        **({} if source is None else {"source": source}),
        "metadata": read_metadata(metadata),
        "split": split,
        "chunk_tokens": chunk_tokens,
        "chunk_overlap": chunk_overlap,
        "embedded_by": embedded_by,
    }


@router.post(
    "", response_model=UploadAnswer, summary="Add or replace documents", openapi_extra=_UPLOAD, responses=ACCEPTED
)
async def add(
    name: CorpusName,
    request: Request,
    service: ServiceDep,
    *,
    options: Annotated[dict[str, Any], Depends(_options)],
    in_background: Annotated[
        bool, Query(alias="async", description="If true, create a job even for a small upload.")
    ] = False,
    idempotency_key: Annotated[
        str | None,
        Header(
            description="Key for safe retries. A request that is repeated with the same key within a day gets "
            "the same answer."
        ),
    ] = None,
) -> Response:
    """Store documents.

    An upload of up to 256 documents (`--max-upload-documents`) is stored at once, either completely or not at all. When
    the answer 200 arrives, its documents are durable and searchable. A larger upload becomes a job. A document with a
    known id replaces the old document. A document without an id gets a new id.

    The content type names the format of the body. In multipart/form-data, the name of the file shows the format. The
    body may be compressed with gzip or zstd. The header `x-truncated-inputs` is the number of texts or passages that
    exceed the model's maximum length. Such a text is stored completely, but only its beginning is embedded.
    """
    assert isinstance(request, BoundedRequest), "StreamedRoute passes a BoundedRequest"
    key = None if idempotency_key is None else check_key(idempotency_key)
    chunking = asked_chunking(options["chunk_tokens"], options["chunk_overlap"])
    rule = await service.library.upload_rule(name, chunking, options["embedded_by"])
    # Don't check the quota yet if the request may repeat an earlier one, because a repetition stores nothing.
    if key is None and not service.jobs.unfinished(UPLOAD, name):
        await in_thread(service.disk_quota.check)
    async with service.jobs.spool() as spool:
        async with service.receiving():
            upload = await _received(request, spool, options)
        asked = digest_of("upload", name, {"async": in_background, **upload.model_dump()}, spool.digest)
        keyed = None
        if key:
            corpus, _ = await service.library.read(lambda corpora: corpora.corpus(name), of=name)
            caller = key_of(request)
            keyed = Keyed(caller.name if caller else "", key, asked, corpus.generation)
        return await while_connected(
            request, _added(service, rule, upload, spool, keyed=keyed, in_background=in_background)
        )


async def _added(
    service: Service, rule: VectorRule, options: Options, spool: Spool, *, keyed: Keyed | None, in_background: bool
) -> Response:
    name = rule.corpus
    async with service.jobs.requests.once(keyed) as before:
        if before:
            return response_of(before)
        upload = None if in_background else await _small(service, rule, options, spool, keyed)
        if upload is None:
            naming = {"naming": keyed.space.hex} if keyed else {}
            asked = options.model_dump() | naming
            return await submitted(service.jobs, UPLOAD, name, asked, spool=spool, keyed=keyed)
        before_commit = partial(check_stays, service.jobs, name)
        before_commit()  # check before the embedding, which takes long
        await in_thread(service.disk_quota.check)
        added = await service.library.add(
            name, upload.documents, options.chunking, embedded_by=options.embedded_by, before_commit=before_commit
        )
        answer: dict[str, Any] = {"ids": [document.id for document in upload.documents], "count": len(upload.documents)}
        if options.on_error == "skip":
            answer["errors"] = [rejected._asdict() for rejected in upload.rejected]
        headers = truncation_header(added.truncated)
        response = json_response(answer, headers=headers)
        if keyed:
            await service.jobs.requests.note(keyed, Answer(200, headers, bytes(response.body)))
        return response


async def _small(
    service: Service, rule: VectorRule, options: Options, spool: Spool, keyed: Keyed | None
) -> Upload | None:
    """Read an upload that is small enough to be stored without a job.

    Return None if the upload has too many documents or too many characters. A job must then store the upload.

    If the format needs a parser, a child process parses the file, and the CPU time is charged to the API key. Other
    formats are read in a thread of this process, within the corpus's limit on threads and the API key's limit on reads.
    """

    def small() -> Upload | None:
        naming = names_within(keyed.space) if keyed else random_names
        with spool.open() as file:
            given = rows(file, options, service.settings, most=service.settings.max_upload_documents + 1)
            skip_errors = options.on_error == "skip"
            return read_upload(given, service.settings, rule, skip_errors=skip_errors, naming=naming)

    if options.format not in PARSED:
        return await service.library.threads.stoppable(rule.corpus, small)
    check_no_debt()
    return await service.parsing.stoppable("", small, charged=True)


async def _received(request: BoundedRequest, spool: Spool, how: dict[str, Any]) -> Options:
    """Receive the upload into `spool`. Return the options for reading the upload."""
    media, coding = media_type(request), content_coding(request.headers.get("content-encoding", ""))
    settings = request.service.settings
    limit = settings.max_upload_bytes
    if media != "multipart/form-data":
        options = Options.of_media(media, charset(request), coding=coding, **how)
        await request.arrive(spool.write, limit, IN_MEMORY)

        def check() -> None:
            with spool.open() as file:
                check_is_text(file, options, settings)

        await in_thread(check)
        return options
    if coding:
        raise UnsupportedMedia(
            "must be absent for multipart/form-data: compress the file instead of the whole body",
            field="content-encoding",
        )
    part = FilePart(request.headers["content-type"])

    async def take(piece: bytes) -> None:
        await spool.write(part.feed(piece))

    await request.arrive(take, limit, IN_MEMORY)
    return Options.of_part(PurePath(part.finish()), part.media, part.charset, **how)
