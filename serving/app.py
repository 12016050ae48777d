"""The HTTP application of a service."""

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
    from serving.api.middleware.traces import Collector

ENVIRONMENT = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Environment variables of OpenTelemetry that name a collector of traces, as the setting `otlp_endpoint` does."""


class TracingError(RuntimeError):
    """A collector is configured, but traces can't be exported. The message gives a remedy."""


def create_app(
    service: Service, clock: Clock = time.monotonic_ns, *, routers: Sequence[APIRouter] = ROUTERS
) -> FastAPI:
    """Create the ASGI application of a service, with the routes of `routers`.

    At startup, the application loads the models. At shutdown, it lets the admitted requests finish. `clock` is the
    clock for the rate limits of API keys.

    Raises:
        KeysError: the file of API keys can't be used.
        TracingError: traces are configured, but the extra `otel` is not installed.
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
    app.add_middleware(Shortcut, routers=routers)  # first, because middleware that is added later wraps it
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
    lifespan: Lifespan[FastAPI] | None = None, *, asks_for_keys: bool = False, routers: Sequence[APIRouter] = ROUTERS
) -> FastAPI:
    """Create the application with its routes and its OpenAPI document.

    `lifespan` provides the service. Without `lifespan`, the application has no service and can't answer requests, but
    its OpenAPI document is complete. With `asks_for_keys`, the document says that requests need an API key.
    """
    app = FastAPIOffline(  # serves the scripts of /docs itself, so that browsers load nothing from other servers
        docs_url=None,  # `pages` serves /docs, so that it works behind a proxy that adds a prefix
        redoc_url=None,
        title="Isosphere",
        version=version("isosphere"),
        description=description.TEXT,
        lifespan=lifespan,
        # A relative URL stays correct if a proxy adds a prefix.
        servers=[{"url": ".", "description": "this server"}],
        responses=description.ERRORS,
        redirect_slashes=False,
        # Telemetry of FastAPI would record texts of callers.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        # Makes /docs show that the server requires a key.
        dependencies=[Depends(HTTPBearer(auto_error=False))] if asks_for_keys else None,
    )
    for router in routers:
        app.include_router(router)
    app.router.default = corpora.unknown(app.router.default)
    description.describe(app)
    return app


def _collector(endpoint: HttpUrl | None) -> Collector | None:
    """Return the collector of traces, or None if neither `endpoint` nor OpenTelemetry's environment names one.

    Raises:
        TracingError: the extra `otel` is not installed.
    """
    if endpoint is None and not any(os.environ.get(name) for name in ENVIRONMENT):
        return None
    try:
        from serving.api.middleware.traces import Collector  # imports OpenTelemetry, which only traces need
    except ImportError as error:
        raise TracingError(f"traces need the extra `otel`: pip install 'isosphere[otel]' ({error})") from error
    return Collector(endpoint)
