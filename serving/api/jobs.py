"""Routes to list, describe, follow and cancel jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from serving.api.routing.answers import JSON, json_response, written
from serving.api.routing.auth import allowed_corpus, key_of
from serving.api.routing.deps import CLOSED, ServiceDep
from serving.api.routing.route import Route
from serving.errors import NotFound
from serving.jobs import Answer, Duplicate, Job, Jobs, Keyed, Spool
from serving.operations.bounds import CORPUS_NAME, check_corpus_name

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=Route, dependencies=CLOSED)
EVENT_SECONDS = 0.2
"""Minimum seconds between two events of a stream. Changes within this period become one event."""


class JobError(BaseModel):
    """Error in a part of the input, or reason why the job failed."""

    place: str
    error: str


class JobAnswer(BaseModel):
    """A job and its progress. All times are in seconds since the epoch."""

    id: str
    kind: str
    corpus: str
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    done: int
    total: int | None = Field(description="Total number of items. null until the number is known.")
    rate: float | None = Field(description="Current speed in items per second. null unless the job is running.")
    eta_s: float | None = Field(description="Estimated seconds until the job is done, at the current speed.")
    errors: list[JobError] = Field(description="The first errors, at most 100.")
    error_count: int
    result: dict[str, Any] | None = Field(description="Result of the job. null unless the job succeeded.")
    created: float
    started: float | None
    finished: float | None


class JobsAnswer(BaseModel):
    """A page of jobs, newest first. `cursor` requests the next page, and is null on the last page."""

    jobs: list[JobAnswer]
    cursor: str | None


_EVENT: dict[str, Any] = {
    "type": "object",
    "description": "A server-sent event.",
    "required": ["event", "data"],
    "properties": {
        "event": {"type": "string", "const": "progress"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "description": "The job, as `GET /jobs/{id}` returns it.",
        },
    },
}
ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {
        "model": JobAnswer,
        "description": "A job was created for the work.",
        "headers": {
            "location": {
                "description": "Path of the job: `/jobs/{id}`.",
                "required": True,
                "schema": {"type": "string"},
            }
        },
    }
}
"""OpenAPI responses of routes that start a job."""


def job_json(job: Job) -> dict[str, Any]:
    """Return a job as a JSON object in the format of `JobAnswer`."""
    fields = {name: getattr(job, name) for name in JobAnswer.model_fields}
    return fields | {
        "errors": [dict(error) for error in job.errors],
        "result": dict(job.result) if job.state == "succeeded" else None,
    }


def _accepted(job: Job) -> Answer:
    return Answer(202, {"location": f"/jobs/{job.id}"}, orjson.dumps(job_json(job)))


def response_of(answer: Answer) -> Response:
    """Convert an `Answer`, the form in which answers are stored for repeated requests, to a response."""
    return Response(answer.body, answer.status, dict(answer.headers), media_type=JSON)


async def submitted(
    jobs: Jobs,
    kind: str,
    corpus: str,
    options: Mapping[str, Any],
    *,
    spool: Spool | None = None,
    keyed: Keyed | None = None,
) -> Response:
    """Submit a job. Return 202 and the job, or 409 and the id of an equal job that is queued or running.

    With `keyed`, the answer 202 is stored together with the job, for repetitions of the request.
    """
    answered = (keyed, _accepted) if keyed else None
    try:
        return response_of(_accepted(await jobs.submit(kind, corpus, options, spool=spool, answered=answered)))
    except Duplicate as duplicate:
        content = {"error": duplicate.message, "error_type": duplicate.kind, "job": duplicate.job}
        return json_response(content, status=duplicate.status, headers={"location": f"/jobs/{duplicate.job}"})


async def _job(id: Annotated[str, Path(description="Id of the job.")], service: ServiceDep, request: Request) -> Job:
    """Return the job with this id.

    Raises:
        NotFound: there is no such job, or the API key has no access to the corpus of the job.
    """
    job, key = await service.jobs.job(id), key_of(request)
    if key and not key.sees(job.corpus):
        raise NotFound(f"there is no job {id[:80]!r}")
    return job


JobDep = Annotated[Job, Depends(_job)]


@router.get("", summary="List jobs", response_model=JobsAnswer)
async def listing(
    service: ServiceDep,
    request: Request,
    *,
    corpus: Annotated[
        str | None, Query(description="List only the jobs of this corpus.", json_schema_extra={"pattern": CORPUS_NAME})
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 100,
    cursor: Annotated[str | None, Query(max_length=64, description="Cursor of the previous page.")] = None,
) -> Response:
    """List jobs of the corpora to which the key has access, newest first.

    The server keeps the last 1000 ended jobs of each key.
    """
    if corpus is not None:
        corpus = allowed_corpus(check_corpus_name(corpus), request)
    key = key_of(request)

    def of(name: str) -> bool:
        return corpus in (None, name) and (key is None or key.sees(name))

    def content() -> bytes:
        more = found[limit - 1].id if len(found) > limit else None
        return written({"jobs": [job_json(job) for job in found[:limit]], "cursor": more})

    # Use a thread, because the errors of a hundred jobs may have several megabytes.
    in_thread_of_key = partial(service.library.threads.read, "")
    found = await service.jobs.listing(of, limit + 1, cursor, in_thread_of_key)
    return Response(await in_thread_of_key(content), media_type=JSON)


@router.get("/{id}", summary="Describe a job", response_model=JobAnswer)
async def describe(job: JobDep) -> Response:
    """Return the job and its progress."""
    return json_response(job_json(job))


@router.get(
    "/{id}/events",
    summary="Follow a job",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": _EVENT}}}},
)
async def events(job: JobDep, service: ServiceDep) -> StreamingResponse:
    """Stream the job as server-sent events named `progress`, until the job ends or the server stops."""
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_events(service.jobs, job.id), media_type="text/event-stream", headers=headers)


@router.delete("/{id}", summary="Cancel a job", response_model=JobAnswer)
async def cancel(job: JobDep, service: ServiceDep) -> Response:
    """Cancel a job. Completed work is kept. If the job has already ended, nothing changes."""
    return json_response(job_json(await service.jobs.cancel(job.id)))


async def _events(jobs: Jobs, id: str) -> AsyncIterator[bytes]:
    async for job in jobs.events(id):
        if job is None:
            yield b": still there\n\n"
            continue
        yield b"event: progress\ndata: " + orjson.dumps(job_json(job)) + b"\n\n"
        if not job.ended:
            await asyncio.sleep(EVENT_SECONDS)
