"""Where the time of each request went, for whoever traces it: nothing unless a collector is named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import TYPE_CHECKING

from pydantic import HttpUrl

from serving.context import holding

if TYPE_CHECKING:
    from serving.otlp import Collector

ENVIRONMENT = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Either names a collector too."""

Record = Callable[[str, float, float, Mapping[str, int]], None]
_RECORD: ContextVar[Record | None] = ContextVar("record", default=None)


class TracingError(RuntimeError):
    """Traces are asked for and can't be made; the message says what to do."""


def record(name: str, began: float, ended: float, **counts: int) -> None:
    """A part of the request that is being answered, if it is traced, between two moments of `time.perf_counter`."""
    if write := _RECORD.get():
        write(name, began, ended, counts)


@contextmanager
def recorded(name: str) -> Iterator[None]:
    """Around a part of a request that is of interest if it comes through."""
    began = perf_counter()
    yield
    record(name, began, perf_counter())


def recording(write: Record | None) -> AbstractContextManager[None]:
    """Around a request: `write` hears of its parts; None: it is not traced."""
    return holding(_RECORD, write)


def collector(endpoint: HttpUrl | None) -> Collector | None:
    """That at `endpoint`, or that OpenTelemetry's environment names; None where neither does.

    Raises:
        TracingError: the packages are missing.
    """
    if endpoint is None and not any(os.environ.get(name) for name in ENVIRONMENT):
        return None
    try:
        from serving.otlp import Collector
    except ImportError as error:
        raise TracingError(f"traces need the extra `otel`: pip install 'isosphere[otel]' ({error})") from error
    return Collector(endpoint)
