"""Where the time of each request went, for whoever traces it: nothing unless a collector is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from time import perf_counter

from serving.context import holding

Record = Callable[[str, float, float, Mapping[str, int]], None]
_RECORD: ContextVar[Record | None] = ContextVar("record", default=None)


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
