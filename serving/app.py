"""The HTTP application around a service."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from pydantic import HttpUrl
from starlette.types import Lifespan

from serving.api import ROUTERS, corpora, description
from serving.api.middleware.edge import Edge, TrailingSlash
from serving.api.middleware.same_origin import SameOrigin
from serving.api.middleware.unread_answers import UnreadLimit
from serving.api.routing import errors
from serving.api.routing.auth import Authentication
from serving.api.routing.request_body import BytesInFlight
from serving.api.routing.route import Head, Shortcut
from serving.operations.limits import Clock, Keyring
from serving.service import Service

if TYPE_CHECKING:
    from serving.operations.otlp import Collector

ENVIRONMENT = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Environment variables of OpenTelemetry that also configure a collector."""


class TracingError(RuntimeError):
    """A collector is configured, but traces can't be exported. The message gives a remedy."""


def create_app(
    service: Service, clock: Clock = time.monotonic_ns, *, routers: Sequence[APIRouter] = ROUTERS
) -> FastAPI:
    """Create the ASGI application with these families of routes.

    Its lifespan loads the model at the start and drains requests at the end. `clock` is the clock of the keys' rate
    limits.

    Raises:
        KeysError: the file of keys can't be used.
        TracingError: traces are configured and can't be exported.
    """
    settings = service.settings
    keyring = (
        Keyring(settings.api_keys_file, settings.key_limits, clock, grace=settings.api_keys_grace)
        if settings.api_keys_file
        else None
    )
    traces = _collector(settings.otlp_endpoint)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:  # noqa: ARG001 - state, not attributes
        async with service.running():
            yield {"service": service, "bytes_in_flight": BytesInFlight(settings.max_received_bytes)}
        if traces:
            await asyncio.to_thread(traces.close)

    app = routes(lifespan, asks_for_keys=keyring is not None, routers=routers)
    errors.install(app)
    app.add_middleware(Shortcut, routers=routers)  # the innermost middleware comes first
    app.add_middleware(Head)
    app.add_middleware(UnreadLimit, limit=settings.max_unread_bytes)
    if keyring:
        app.add_middleware(Authentication, keyring=keyring)
    else:
        app.add_middleware(SameOrigin, origins=settings.cors_origins, local=not settings.insecure)
    app.add_middleware(Edge, origins=settings.cors_origins)
    if traces:
        from serving.api.middleware.traces import Traces

        app.add_middleware(Traces, collector=traces)
    app.add_middleware(TrailingSlash, routers=routers)
    return app


def routes(
    lifespan: Lifespan[FastAPI] | None = None,
    *,
    asks_for_keys: bool = False,
    routers: Sequence[APIRouter] = ROUTERS,
) -> FastAPI:
    """Create the application with its routes and its OpenAPI document, without a service.

    Only requests need a service.
    """
    app = FastAPIOffline(  # serves the scripts of /docs itself, so that browsers fetch nothing from elsewhere
        docs_url=None,  # `pages` serves /docs, under any prefix
        redoc_url=None,
        title="Isosphere",
        version=version("isosphere"),
        description=description.TEXT,
        lifespan=lifespan,
        # relative to the document, so that it holds under any prefix of a proxy
        servers=[{"url": ".", "description": "this server"}],
        responses=description.ERRORS,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},  # they quote callers
        dependencies=[Depends(HTTPBearer(auto_error=False))] if asks_for_keys else None,  # /docs asks for a key, too
    )
    for router in routers:
        app.include_router(router)
    app.router.default = corpora.unknown(app.router.default)
    description.describe(app)
    return app


def _collector(endpoint: HttpUrl | None) -> Collector | None:
    """Return the collector of traces, or None if neither `endpoint` nor OpenTelemetry's environment names one.

    Raises:
        TracingError: the packages for traces are missing.
    """
    if endpoint is None and not any(os.environ.get(name) for name in ENVIRONMENT):
        return None
    try:
        from serving.operations.otlp import Collector  # OpenTelemetry, which only traces need
    except ImportError as error:
        raise TracingError(f"traces need the extra `otel`: pip install 'isosphere[otel]' ({error})") from error
    return Collector(endpoint)
