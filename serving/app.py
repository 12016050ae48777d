"""The HTTP application around a service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline

from serving.api import ROUTERS, cors, errors
from serving.api.access_log import AccessLog
from serving.api.auth import Authentication
from serving.api.methods import Head
from serving.api.request_id import RequestId
from serving.api.schemas import ErrorAnswer
from serving.keyring import Keyring
from serving.limits import Clock
from serving.service import Service
from serving.tracing import collector

DESCRIPTION = """Sentence embeddings, similarity and semantic search over uploaded corpora.

`null` equals absent for every optional field, unknown fields are ignored, enums are read in any case. Every response
has `x-request-id`. Errors are JSON: `{"error", "error_type"}`, OpenAI's `{"error": {...}}` under `/v1`,
Cohere's `{"message"}` under `/v2`."""

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": description}
    for status, description in {
        400: "malformed or empty",
        401: "no key, or an unknown one",
        403: "not for this key",
        404: "not found",
        408: "the body came in too slowly",
        409: "embedded by another bundle, or busy with the same",
        413: "too large",
        415: "a content type that is not read",
        422: "wrong type or value, naming the field",
        424: "the engine failed",
        429: "the queue is full, or the key's limit is reached; see Retry-After",
        503: "loading, draining or failed; see Retry-After",
        504: "not done within x-timeout-ms",
    }.items()
}


def create_app(service: Service, clock: Clock = time.monotonic_ns) -> FastAPI:
    """An ASGI application; its lifespan loads the model and, at the end, drains. `clock` times the limits of keys.

    Raises:
        KeysError: the file of keys can't be used.
        TracingError: traces are asked for and can't be made.
    """
    settings = service.settings
    keyring = Keyring(settings.api_keys_file, settings.key_limits, clock) if settings.api_keys_file else None
    traces = collector(settings.otlp_endpoint)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:  # noqa: ARG001 - state, not attributes
        async with service.running():
            yield {"service": service}
        if traces:
            await asyncio.to_thread(traces.close)

    app = FastAPIOffline(  # its /docs brings its own scripts: nothing is fetched from elsewhere
        redoc_url=None,
        title="Isosphere",
        version=version("isosphere"),
        description=DESCRIPTION,
        lifespan=lifespan,
        responses=ERRORS,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},  # they quote callers
        dependencies=[Depends(HTTPBearer(auto_error=False))] if keyring else None,  # for /docs: it asks for a key
    )
    for router in ROUTERS:
        app.include_router(router)
    errors.install(app)
    app.add_middleware(Head)  # from the inside out
    if keyring:
        app.add_middleware(Authentication, keyring=keyring)
    app.add_middleware(errors.Bugs)
    if settings.cors_origins:
        cors.allow(app, settings.cors_origins)
    app.add_middleware(AccessLog)
    if traces:
        from serving.api.traces import Traces

        app.add_middleware(Traces, collector=traces)
    app.add_middleware(RequestId)
    return app
