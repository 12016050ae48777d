"""Context variables inherited by tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set `variable` to `value` while the block runs."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
