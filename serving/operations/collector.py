"""Configuration of the OpenTelemetry collector that receives traces.

OpenTelemetry is imported only if a collector is configured.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pydantic import HttpUrl

if TYPE_CHECKING:
    from serving.operations.otlp import Collector

ENVIRONMENT = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Environment variables of OpenTelemetry that also configure a collector."""


class TracingError(RuntimeError):
    """A collector is configured, but traces can't be exported. The message gives a remedy."""


def collector(endpoint: HttpUrl | None) -> Collector | None:
    """Return the collector at `endpoint`, or the collector in OpenTelemetry's environment variables.

    If neither is set, return None.

    Raises:
        TracingError: the packages for traces are missing.
    """
    if endpoint is None and not any(os.environ.get(name) for name in ENVIRONMENT):
        return None
    try:
        from serving.operations.otlp import Collector
    except ImportError as error:
        raise TracingError(f"traces need the extra `otel`: pip install 'isosphere[otel]' ({error})") from error
    return Collector(endpoint)
