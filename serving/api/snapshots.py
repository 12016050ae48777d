"""Routes of snapshots of a corpus: make, list, download, delete and restore.

Also the routes that re-embed a corpus with another encoder, and adapt an encoder to it.
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
from serving.jobs import Spool
from serving.jobs.adapting import check_allowed
from serving.jobs.kinds import ADAPT, REEMBED, SNAPSHOT
from serving.jobs.reembedding import check_replaced
from serving.jobs.spool import IN_MEMORY
from serving.jobs.upload_order import RESTORE
from serving.operations.bounds import CORPUS_NAME, check_corpus_name
from serving.operations.encoding import content_coding
from serving.operations.threads import in_thread
from serving.service import Service

router = APIRouter(prefix="/corpora/{name}", tags=["snapshots"], route_class=Route, dependencies=CLOSED)
streamed = APIRouter(prefix="/corpora/{name}", tags=["snapshots"], route_class=StreamedRoute, dependencies=CLOSED)

ZSTD = "application/zstd"
_NEITHER = f"must be {ZSTD}, of a snapshot that is sent, or application/json, of a body that names one"
PACKED = (ZSTD, "application/octet-stream", "application/x-tar")
SnapshotId = Annotated[str, Path(description="Id of the snapshot.")]
MAX_STEPS = 2000
"""Maximum training steps of an adaptation."""
_JOB: dict[str, Any] = {"status_code": 202, "response_model": JobAnswer, "responses": ACCEPTED}


class ReembedRequest(ClosedBody):
    """The encoder of this server that will embed the corpus."""

    model: AskedModel = None
    replace_own_vectors: bool = Field(
        default=False,
        description="Replace vectors that came with the documents. They can't be made again, so they must be named.",
    )


class AdaptRequest(ClosedBody):
    """The encoder of this server that training starts from."""

    model: AskedModel = None
    max_steps: int | None = Field(
        default=None, ge=1, le=MAX_STEPS, description="Number of training steps. Default: three passes over the texts."
    )


class RestoreRequest(ClosedBody):
    """A snapshot on the server. `of` is the corpus that it was made of, by default the one that is restored."""

    snapshot: str
    of: str | None = Field(default=None, json_schema_extra={"pattern": CORPUS_NAME})


class SnapshotAnswer(BaseModel):
    """State of a corpus at one moment, in a file."""

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

    The response is complete even if the file has been deleted, and closes the file.
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
    """Start a job that embeds the corpus with the encoder `model`, by default the first.

    The old vectors answer searches until the job has finished. 409 if they came with the documents, unless
    `replace_own_vectors` is true.
    """
    asked = body or ReembedRequest()
    served = service.encoders.encoder(asked.model)
    corpus, _ = await service.library.read(lambda corpora: corpora.corpus(name), of=name)
    options: dict[str, Any] = {"model": served.name}
    if asked.replace_own_vectors:
        options["replace_own_vectors"] = True
    check_replaced(corpus, options)
    return await submitted(service.jobs, REEMBED, name, options)


@router.post("/adapt", summary="Adapt an encoder to a corpus", **_JOB)
async def adapt(name: CorpusName, service: ServiceDep, body: AdaptRequest | None = None) -> Response:
    """Start a job that trains the encoder `model`, by default the first, on the corpus's texts, without labels.

    Its `result` compares the encoders on passages that were held out of training. `bundle` is the folder of the better
    encoder, or null if none is better. `next` has the requests that serve it and embed the corpus by it. Nothing that
    is served changes. One adaptation runs at a time, for minutes. 409 if enough encoders were adapted to the corpus,
    or if its callers computed its vectors. 501 if the extra `train` is not installed, or with `--no-adapt`.
    """
    check_allowed(service.settings)
    asked = body or AdaptRequest()
    served = service.encoders.encoder(asked.model)
    corpus, size = await service.library.read(lambda corpora: corpora.corpus(name), of=name)
    if corpus.own_vectors:
        raise Conflict(
            f"callers computed the vectors of corpus {name!r}, so it is not searched by an encoder of this server: "
            f"POST /corpora/{name}/reembed replaces them"
        )
    if not size.documents:
        raise Conflict(f"corpus {name!r} has no documents to adapt to")
    options: dict[str, Any] = {"model": served.name}
    if asked.max_steps:
        options["max_steps"] = asked.max_steps
    return await submitted(service.jobs, ADAPT, name, options)


@router.post("/snapshots", summary="Create a snapshot", **_JOB)
async def create(name: CorpusName, service: ServiceDep) -> Response:
    """Start a job whose `result` is the snapshot. It captures one moment while others read and write."""
    service.library.corpora.check_snapshots()
    await service.library.read(lambda corpora: corpora.corpus(name), of=name)
    return await submitted(service.jobs, SNAPSHOT, name, {})


@router.get("/snapshots", summary="List snapshots")
async def listing(name: CorpusName, service: ServiceDep) -> SnapshotsAnswer:
    """List snapshots of the corpus, even if it was deleted."""
    found = await service.library.read(lambda _: service.snapshots.listing(name), of=name)
    return SnapshotsAnswer(snapshots=[SnapshotAnswer(**asdict(one)) for one in found])


@router.get(
    "/snapshots/{id}",
    summary="Download a snapshot",
    response_class=FileResponse,
    responses={200: {"content": {ZSTD: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def download(name: CorpusName, id: SnapshotId, service: ServiceDep) -> FileResponse:
    """Download one file, `tar` in `zstd`. The download is complete even if the snapshot is deleted meanwhile."""
    file = await service.library.run(lambda _: service.snapshots.opened(name, id), of=name)
    return OpenFileResponse(file, media_type=ZSTD, filename=f"{name}-{id}{SUFFIX}")


@router.delete("/snapshots/{id}", status_code=204, summary="Delete a snapshot")
async def delete(name: CorpusName, id: SnapshotId, service: ServiceDep) -> None:
    """Delete the snapshot's file."""
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
    """Start a job that restores an uploaded snapshot, or one that the server has.

    The present corpus, whatever its encoder, answers requests until the snapshot is complete and checked.
    """
    assert isinstance(request, BoundedRequest), "StreamedRoute makes it"
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
        if content_coding(request.headers.get("content-encoding", "")) == "gzip":  # snapshots already are zstd
            raise UnsupportedMedia("a snapshot is sent as it is", field="content-encoding")
        if not service.jobs.unfinished(RESTORE, name):  # an equal job is a conflict, regardless of the free space
            await in_thread(service.disk_quota.check)
        async with service.receiving():
            await request.arrive(spool.write, service.settings.max_upload_bytes, IN_MEMORY)
        await in_thread(lambda: _check_begun(service, spool))
        return await while_connected(request, submitted(service.jobs, RESTORE, name, {}, spool=spool))


def _check_begun(service: Service, spool: Spool) -> None:
    with spool.open() as file:
        service.snapshots.unpacked_bytes(file, spool.size)
