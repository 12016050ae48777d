"""Routes for snapshots of a corpus, for re-embedding, and for adapting an encoder.

Snapshots can be created, listed, downloaded, deleted and restored.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from serving.api.jobs import ACCEPTED, JobAnswer, submitted
from serving.api.routing.auth import allowed_corpus
from serving.api.routing.deps import CLOSED, CorpusName, ServiceDep
from serving.api.routing.request_body import BoundedRequest
from serving.api.routing.route import Route, StreamedRoute, is_json, media_type, parsed, while_connected
from serving.api.schemas.bodies import AskedModel, ClosedBody
from serving.corpora.snapshots import SUFFIX
from serving.errors import Conflict, UnsupportedMedia
from serving.jobs.adapting import check_allowed
from serving.jobs.kinds import ADAPT, REEMBED, SNAPSHOT
from serving.jobs.reembedding import check_replaced
from serving.jobs.spool import IN_MEMORY
from serving.jobs.upload_order import RESTORE
from serving.operations.bounds import CORPUS_NAME, check_corpus_name
from serving.operations.encoding import content_coding
from serving.operations.threads import in_thread

router = APIRouter(prefix="/corpora/{name}", tags=["snapshots"], route_class=Route, dependencies=CLOSED)
streamed = APIRouter(prefix="/corpora/{name}", tags=["snapshots"], route_class=StreamedRoute, dependencies=CLOSED)

ZSTD = "application/zstd"
_NEITHER = f"must be {ZSTD} for the file of a snapshot, or application/json for the id of a snapshot"
PACKED = (ZSTD, "application/octet-stream", "application/x-tar")
SnapshotId = Annotated[str, Path(description="Id of the snapshot.")]
MAX_STEPS = 2000
"""Maximum number of training steps of an adaptation."""
_JOB: dict[str, Any] = {"status_code": 202, "response_model": JobAnswer, "responses": ACCEPTED}


class ReembedRequest(ClosedBody):
    """Request to embed a corpus again. `model` is the encoder to use, by default the first encoder."""

    model: AskedModel = None
    replace_own_vectors: bool = Field(
        default=False,
        description="Set this to true to replace vectors that came with the documents. The server can't compute "
        "these vectors again.",
    )


class AdaptRequest(ClosedBody):
    """Request to adapt an encoder to a corpus. Training starts from the encoder `model`."""

    model: AskedModel = None
    max_steps: int | None = Field(
        default=None, ge=1, le=MAX_STEPS, description="Number of training steps. Default: three passes over the texts."
    )


class RestoreRequest(ClosedBody):
    """Request to restore a corpus from a snapshot that the server has.

    `of` is the corpus from which the snapshot was made. By default, it is the corpus that is restored.
    """

    snapshot: str
    of: str | None = Field(default=None, json_schema_extra={"pattern": CORPUS_NAME})


class SnapshotAnswer(BaseModel):
    """A file with the state of a corpus at one moment."""

    id: str
    corpus: str
    created: float = Field(description="Time of the snapshot, in seconds since the epoch.")
    documents: int
    passages: int
    fingerprint: str | None = Field(description="Fingerprint of the bundle that embedded the corpus.")
    bytes: int = Field(description="Size of the file in bytes.")


class SnapshotsAnswer(BaseModel):
    """Snapshots, newest first."""

    snapshots: list[SnapshotAnswer]


class OpenFileResponse(FileResponse):
    """Response with the content of an open file.

    The content is complete even if the file is deleted meanwhile. The response closes the file.
    """

    def __init__(self, file: BinaryIO, *, media_type: str, filename: str) -> None:
        self._file = file
        there = os.fstat(file.fileno())
        super().__init__(f"/proc/self/fd/{file.fileno()}", media_type=media_type, filename=filename, stat_result=there)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)


@router.post("/reembed", summary="Re-embed a corpus", **_JOB)
async def reembed(name: CorpusName, service: ServiceDep, body: ReembedRequest | None = None) -> Response:
    """Start a job that embeds the corpus with the encoder `model`, by default the first encoder.

    Searches use the old vectors until the job has finished. 409 if the vectors came with the documents, unless
    `replace_own_vectors` is true.
    """
    asked = body or ReembedRequest()
    served = service.encoders.corpus_encoder(asked.model)
    corpus, _ = await service.library.read(lambda corpora: corpora.corpus(name), of=name)
    options: dict[str, Any] = {"model": served.name}
    if asked.replace_own_vectors:
        options["replace_own_vectors"] = True
    check_replaced(corpus, options)
    return await submitted(service.jobs, REEMBED, name, options)


@router.post("/adapt", summary="Adapt an encoder to a corpus", **_JOB)
async def adapt(name: CorpusName, service: ServiceDep, body: AdaptRequest | None = None) -> Response:
    """Start a job that trains the encoder `model`, by default the first encoder, on the corpus's texts without labels.

    The job compares the old and the new encoder on passages that were not used for training. In the
    `result` of the job, `bundle` is the folder of the new encoder, or null if the new encoder is not better. `next` has
    the requests that load the new encoder and embed the corpus with it. The served encoders do not change.

    Only one adaptation runs at a time, and it takes minutes. 409 if the server already keeps the maximum number of
    adapted encoders for the corpus, if the corpus has no documents, or if the vectors came with the documents. 501 if
    the extra `train` is not installed, or with `--no-adapt`.
    """
    check_allowed(service.settings)
    asked = body or AdaptRequest()
    served = service.encoders.corpus_encoder(asked.model)
    corpus, size = await service.library.read(lambda corpora: corpora.corpus(name), of=name)
    if corpus.own_vectors:
        raise Conflict(
            f"the vectors of corpus {name!r} came with its documents, not from an encoder of this server: POST "
            f"/corpora/{name}/reembed replaces them"
        )
    if not size.documents:
        raise Conflict(f"corpus {name!r} has no documents, so an encoder can't be adapted to it")
    options: dict[str, Any] = {"model": served.name}
    if asked.max_steps:
        options["max_steps"] = asked.max_steps
    return await submitted(service.jobs, ADAPT, name, options)


@router.post("/snapshots", summary="Create a snapshot", **_JOB)
async def create(name: CorpusName, service: ServiceDep) -> Response:
    """Start a job that creates a snapshot. The `result` of the job describes the snapshot.

    The snapshot has the state of the corpus at one moment. Reads and writes continue meanwhile.
    """
    service.library.corpora.check_snapshots()
    await service.library.read(lambda corpora: corpora.corpus(name), of=name)
    return await submitted(service.jobs, SNAPSHOT, name, {})


@router.get("/snapshots", summary="List snapshots")
async def listing(name: CorpusName, service: ServiceDep) -> SnapshotsAnswer:
    """List the snapshots of a corpus, even if the corpus was deleted."""
    found = await service.library.read(lambda _: service.snapshots.listing(name), of=name)
    return SnapshotsAnswer(snapshots=[SnapshotAnswer(**asdict(one)) for one in found])


@router.get(
    "/snapshots/{id}",
    summary="Download a snapshot",
    response_class=FileResponse,
    responses={200: {"content": {ZSTD: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def download(name: CorpusName, id: SnapshotId, service: ServiceDep) -> FileResponse:
    """Download a snapshot as one file, a `tar` archive compressed with `zstd`.

    The download is complete even if the snapshot is deleted meanwhile.
    """
    file = await service.library.run(lambda _: service.snapshots.opened(name, id), of=name)
    return OpenFileResponse(file, media_type=ZSTD, filename=f"{name}-{id}{SUFFIX}")


@router.delete("/snapshots/{id}", status_code=204, summary="Delete a snapshot")
async def delete(name: CorpusName, id: SnapshotId, service: ServiceDep) -> None:
    """Delete a snapshot."""
    await service.library.run(lambda _: service.snapshots.delete(name, id), of=name)


@streamed.put(
    "/restore",
    summary="Restore a corpus",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                ZSTD: {"schema": {"type": "string", "format": "binary"}},
                "application/json": {"schema": RestoreRequest.model_json_schema()},
            },
        }
    },
    **_JOB,
)
async def restore(name: CorpusName, request: Request, service: ServiceDep) -> Response:
    """Start a job that restores an uploaded snapshot or a snapshot that the server has.

    Until the snapshot is completely read and checked, the current corpus answers requests, even if the corpus
    and the snapshot have different encoders.
    """
    assert isinstance(request, BoundedRequest), "StreamedRoute passes a BoundedRequest"
    service.library.corpora.check_snapshots()
    if not request.headers.get("content-type"):
        raise UnsupportedMedia(_NEITHER, field="content-type")
    media = media_type(request)
    async with service.jobs.spool() as spool:
        if is_json(media):
            async with service.receiving():
                asked = parsed(RestoreRequest, await request.json())
            of = allowed_corpus(check_corpus_name(asked.of or name, "of"), request)
            await service.library.read(lambda _: service.snapshots.path(of, asked.snapshot), of=name)
            return await submitted(service.jobs, RESTORE, name, {"of": of, "snapshot": asked.snapshot})
        if media not in PACKED:
            raise UnsupportedMedia(f"{_NEITHER}, not {media[:80]}", field="content-type")
        # A snapshot is already compressed with zstd.
        if content_coding(request.headers.get("content-encoding", "")) == "gzip":
            raise UnsupportedMedia("must be absent: send the snapshot as it is", field="content-encoding")
        # If an equal job is queued or running, the answer must be 409, even if the disk quota is used up.
        if not service.jobs.unfinished(RESTORE, name):
            await in_thread(service.disk_quota.check)
        async with service.receiving():
            await request.arrive(spool.write, service.settings.max_upload_bytes, IN_MEMORY)

        def check_begun() -> None:
            with spool.open() as file:
                service.snapshots.unpacked_bytes(file, spool.size)

        await in_thread(check_begun)
        return await while_connected(request, submitted(service.jobs, RESTORE, name, {}, spool=spool))
