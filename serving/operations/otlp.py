"""Exporter of OpenTelemetry traces by OTLP over HTTP. This module is imported only if a collector is configured.

Spans contain counts, routes, statuses, and the ids of the trace and the request. They contain no other data of the
caller.
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
from opentelemetry.trace import Span, SpanKind, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic import HttpUrl

from serving.operations.context import recording

SECONDS_TO_SEND = 5.0
"""Maximum seconds for sending the last spans at shutdown."""


class Collector:
    """Sender of spans in the background. If its queue is full, spans are dropped.

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
        """Record the run of the `with` block as the span of a request.

        The request's headers `traceparent` and `tracestate` give the trace (W3C Trace Context).
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

        with recording(write if span.is_recording() else None):
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
