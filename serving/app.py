"""The HTTP application around a service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from serving.api import ROUTERS, errors
from serving.api.request_id import RequestId
from serving.api.schemas import ErrorAnswer
from serving.service import Service

DESCRIPTION = """Sentence embeddings, similarity and semantic search over uploaded corpora.

`null` equals absent for every optional field, unknown fields are ignored, enums are read in any case. Every response
has `x-request-id`. Errors are JSON: `{"error", "error_type"}`, and OpenAI's `{"error": {...}}` under `/v1`."""

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": description}
    for status, description in {
        400: "malformed or empty",
        404: "not found",
        409: "embedded by another bundle, or busy with the same",
        413: "too large",
        415: "a content type that is not read",
        422: "wrong type or value, naming the field",
        424: "the engine failed",
        429: "the queue is full; see Retry-After",
        503: "loading, draining or failed; see Retry-After",
    }.items()
}


def create_app(service: Service) -> FastAPI:
    """An ASGI application; its lifespan loads the model and, at the end, drains."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:  # noqa: ARG001 - state, not attributes
        async with service.running():
            yield {"service": service}

    app = FastAPIOffline(  # its /docs brings its own scripts: nothing is fetched from elsewhere
        redoc_url=None,
        title="Isosphere",
        version=version("isosphere"),
        description=DESCRIPTION,
        lifespan=lifespan,
        responses=ERRORS,
        redirect_slashes=False,
    )
    for router in ROUTERS:
        app.include_router(router)
    errors.install(app)
    app.add_middleware(RequestId)
    return app
