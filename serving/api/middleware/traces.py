"""Traces: a span for each request, exported by OTLP over HTTP. This module is imported only if traces are configured.

Spans contain counts, routes, statuses, and the ids of the trace and the request. They contain no other data of the
caller. The names of requests' spans and of their attributes follow OpenTelemetry's conventions for HTTP servers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic import HttpUrl
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.middleware.edge import PROBES, REQUEST_ID
from serving.operations.context import RECORD, holding

_CONTEXT = {b"traceparent", b"tracestate"}
SECONDS_TO_SEND = 5.0
"""Maximum seconds for sending the last spans at shutdown."""


class Collector:
    """Background sender of spans. If its queue is full, spans are dropped.

    The headers, timeout, certificates and sampling come from OpenTelemetry's environment variables.
    """

    def __init__(self, endpoint: HttpUrl | None) -> None:
        self._exporter = OTLPSpanExporter(f"{str(endpoint).rstrip('/')}/v1/traces" if endpoint else None)
        ours = Resource.create({"service.name": "isosphere", "service.version": version("isosphere")})
        self._provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("isosphere")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, name: str, headers: Mapping[str, str]) -> Iterator[Span]:
        """Record the `with` block as the span `name` of a request, and yield the span.

        The request's headers `traceparent` and `tracestate` name the trace to which the span belongs (W3C Trace
        Context).
        """
        began = time.perf_counter()
        epoch = time.time_ns() - round(1e9 * began)  # all spans of a trace need the same epoch

        def at(moment: float) -> int:
            return epoch + round(1e9 * moment)

        parent = self._propagator.extract(headers)
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, start_time=at(began))
        within = set_span_in_context(span)

        def write(name: str, began: float, ended: float, counts: Mapping[str, int]) -> None:
            self._tracer.start_span(name, within, attributes=counts, start_time=at(began)).end(at(ended))

        with holding(RECORD, write if span.is_recording() else None):
            try:
                yield span
            finally:
                span.end(at(time.perf_counter()))

    def close(self) -> None:
        """Send the remaining spans, then stop. This call blocks."""
        patience = threading.Timer(SECONDS_TO_SEND, self._exporter.shutdown)
        patience.start()
        self._provider.shutdown()
        patience.cancel()


class Traces:
    """Pure ASGI middleware that records a span for each request, except requests for the paths `PROBES`.

    A span names the route by its template, because a path may contain the id of a document.
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
