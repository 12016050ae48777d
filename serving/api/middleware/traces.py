"""A trace span for each request, named by OpenTelemetry's conventions for HTTP servers."""

from __future__ import annotations

from opentelemetry.trace import StatusCode
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.middleware.edge import PROBES, REQUEST_ID
from serving.operations.otlp import Collector

_CONTEXT = {b"traceparent", b"tracestate"}


class Traces:
    """Pure ASGI middleware that records a span for each request.

    A span names the route by its template, because a path may quote documents.
    """

    def __init__(self, app: ASGIApp, collector: Collector) -> None:
        self._app = app
        self._collector = collector

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request within a span.

        The span records the type of an exception. It does not record the message, which may quote the request.
        """
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _CONTEXT}
        with self._collector.request(method, headers) as span:
            span.set_attribute("http.request.method", method)

            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        span.set_attribute("error.type", str(message["status"]))
                        span.set_status(StatusCode.ERROR)
                await send(message)

            try:
                await self._app(scope, receive, noted)
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(StatusCode.ERROR)
                raise
            finally:
                span.set_attribute(REQUEST_ID, scope["state"]["request_id"])  # set by `Edge`, an inner middleware
                if route := scope.get("route"):
                    span.update_name(f"{method} {route.path}")
                    span.set_attribute("http.route", route.path)
