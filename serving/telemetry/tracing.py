"""Recording of the parts of each request for traces. It does nothing unless a collector is configured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from time import perf_counter

from serving.context import holding

Record = Callable[[str, float, float, Mapping[str, int]], None]
_RECORD: ContextVar[Record | None] = ContextVar("record", default=None)


def record(name: str, began: float, ended: float, **counts: int) -> None:
    """Record a part of the current request, if it is traced, between two times of `time.perf_counter`."""
    if write := _RECORD.get():
        write(name, began, ended, counts)


@contextmanager
def recorded(name: str) -> Iterator[None]:
    """Record the block as a part of the request, if it succeeds."""
    began = perf_counter()
    yield
    record(name, began, perf_counter())


def recording(write: Record | None) -> AbstractContextManager[None]:
    """Call `write` with the parts of a request within the block. None means that the request is not traced."""
    return holding(_RECORD, write)
