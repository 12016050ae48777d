"""Helpers for SQL statements about many keys, one block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

BLOCK = 4096
"""Maximum rows that one statement names or fetches."""


def blocks(values: Sequence[T], size: int = BLOCK) -> Iterator[Sequence[T]]:
    """Split `values` into consecutive blocks of up to `size`."""
    return (values[i : i + size] for i in range(0, len(values), size))


def marks(block: Sequence[object]) -> str:
    """Return a placeholder for each value, for use in `IN (…)`."""
    return ",".join("?" * len(block))
