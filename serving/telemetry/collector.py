"""Which collector of traces a server has, if it has one: OpenTelemetry is imported only then."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pydantic import HttpUrl

if TYPE_CHECKING:
    from serving.telemetry.otlp import Collector

ENVIRONMENT = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Either names a collector too."""


class TracingError(RuntimeError):
    """Traces are asked for and can't be made; the message says what to do."""


def collector(endpoint: HttpUrl | None) -> Collector | None:
    """That at `endpoint`, or that OpenTelemetry's environment names; None where neither does.

    Raises:
        TracingError: the packages are missing.
    """
    if endpoint is None and not any(os.environ.get(name) for name in ENVIRONMENT):
        return None
    try:
        from serving.telemetry.otlp import Collector
    except ImportError as error:
        raise TracingError(f"traces need the extra `otel`: pip install 'isosphere[otel]' ({error})") from error
    return Collector(endpoint)
