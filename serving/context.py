"""What holds for the work under way, and for the tasks that it begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Around work for which `variable` has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
