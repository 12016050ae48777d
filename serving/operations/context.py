"""Context variables that tasks inherit: priority and connection of the work, and the recorder of trace spans."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
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


# The priority of work. Bulk work may wait for interactive requests.

PRIORITY = "x-priority"
_bulk: ContextVar[bool] = ContextVar("bulk", default=False)


def is_bulk() -> bool:
    """Return whether the current work is bulk work."""
    return _bulk.get()


def bulk_work(bulk: bool = True) -> AbstractContextManager[None]:
    """Mark the work in the `with` block as bulk work. If `bulk` is false, mark it as interactive."""
    return holding(_bulk, bulk)


def parse_priority(header: str) -> bool:
    """Return whether the header `x-priority` marks a request as bulk work, or raise `Invalid` for an unknown value."""
    value = header.strip().lower()
    if value not in ("interactive", "bulk"):
        raise Invalid("must be interactive or bulk", field=PRIORITY)
    return value == "bulk"


# The connection of an HTTP request. The batcher learns from it whether there are several callers.

_CONNECTION: ContextVar[Hashable] = ContextVar("connection", default=None)


def current_connection() -> Hashable:
    """Return the id of the HTTP connection that the current work is for, or None."""
    return _CONNECTION.get()


def on_connection(connection: Hashable) -> AbstractContextManager[None]:
    """Mark the work of the `with` block, and of tasks that it starts, as work for the HTTP connection with this id."""
    return holding(_CONNECTION, connection)


# The recorder of trace spans. Without a configured collector, it records nothing.

Record = Callable[[str, float, float, Mapping[str, int]], None]
_RECORD: ContextVar[Record | None] = ContextVar("record", default=None)


def record(name: str, began: float, ended: float, **counts: int) -> None:
    """Record a span of the current request, if the request is traced.

    `began` and `ended` are times of `time.perf_counter`.
    """
    if write := _RECORD.get():
        write(name, began, ended, counts)


@contextmanager
def recorded(name: str) -> Iterator[None]:
    """Record the run of the `with` block as a span of the current request.

    A block that raises an exception is not recorded.
    """
    began = perf_counter()
    yield
    record(name, began, perf_counter())


def recording(write: Record | None) -> AbstractContextManager[None]:
    """Call `write` for each span that is recorded in the `with` block. With None, the request is not traced."""
    return holding(_RECORD, write)
