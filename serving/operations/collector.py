"""The OpenTelemetry collector that receives traces. OpenTelemetry is only imported if a collector is configured."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pydantic import HttpUrl

if TYPE_CHECKING:
    from serving.operations.otlp import Collector

ENVIRONMENT = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""OpenTelemetry's environment variables that also configure a collector."""


class TracingError(RuntimeError):
    """A collector is configured, but traces can't be exported. The message says what to do."""


def collector(endpoint: HttpUrl | None) -> Collector | None:
    """Return the collector at `endpoint` or in OpenTelemetry's environment variables. Return None if neither is set.

    Raises:
        TracingError: the packages are missing.
    """
    if endpoint is None and not any(os.environ.get(name) for name in ENVIRONMENT):
        return None
    try:
        from serving.operations.otlp import Collector
    except ImportError as error:
        raise TracingError(f"traces need the extra `otel`: pip install 'isosphere[otel]' ({error})") from error
    return Collector(endpoint)
