"""Context variables that tasks inherit: the priority, the HTTP connection, and the recorder of trace spans."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import TypeVar

from serving.errors import Invalid

T = TypeVar("T")


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set `variable` to `value` while the `with` block runs."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


PRIORITY = "x-priority"
BULK: ContextVar[bool] = ContextVar("bulk", default=False)
"""True for bulk work, which may wait for interactive requests."""
CONNECTION: ContextVar[Hashable] = ContextVar("connection", default=None)
"""Id of the HTTP connection of the current request. By this id, the batcher notices that there are several callers."""
Record = Callable[[str, float, float, Mapping[str, int]], None]
RECORD: ContextVar[Record | None] = ContextVar("record", default=None)
"""Recorder of trace spans. None if the request is not traced."""


def parse_priority(header: str) -> bool:
    """Return whether the header `x-priority` marks a request as bulk work, or raise `Invalid` for an unknown value."""
    value = header.strip().lower()
    if value not in ("interactive", "bulk"):
        raise Invalid("must be interactive or bulk", field=PRIORITY)
    return value == "bulk"


def record(name: str, began: float, ended: float, **counts: int) -> None:
    """Record a span of the current request, if the request is traced.

    `began` and `ended` are times of `time.perf_counter`.
    """
    if write := RECORD.get():
        write(name, began, ended, counts)


@contextmanager
def recorded(name: str) -> Iterator[None]:
    """Record the run of the `with` block as a span of the current request.

    A block that raises an exception is not recorded.
    """
    began = perf_counter()
    yield
    record(name, began, perf_counter())
