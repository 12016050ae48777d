"""Statements about many keys, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

BLOCK = 4096
"""Rows a statement names or fetches at a time."""


def blocks(values: Sequence[T], size: int = BLOCK) -> Iterator[Sequence[T]]:
    """`values` in their order, up to `size` at a time."""
    return (values[i : i + size] for i in range(0, len(values), size))


def marks(block: Sequence[object]) -> str:
    """A placeholder for each, to stand in `IN (…)`."""
    return ",".join("?" * len(block))
