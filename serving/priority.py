"""Priority of work: bulk work may wait for interactive requests."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from serving.context import holding
from serving.errors import Invalid

HEADER = "x-priority"
_bulk: ContextVar[bool] = ContextVar("bulk", default=False)


def is_bulk() -> bool:
    """Return whether the current work is bulk."""
    return _bulk.get()


def bulk_work(bulk: bool = True) -> AbstractContextManager[None]:
    """Mark work within the block as bulk."""
    return holding(_bulk, bulk)


def asked_for(header: str | None) -> bool:
    """Read the priority from the header `x-priority`; return whether it is bulk.

    Raises:
        Invalid: the header has another value.
    """
    value = "interactive" if header is None else header.strip().lower()
    if value not in ("interactive", "bulk"):
        raise Invalid("must be interactive or bulk", field=HEADER)
    return value == "bulk"
