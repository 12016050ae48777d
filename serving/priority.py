"""Whether work is bulk: it may wait for whoever sits before a screen."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from serving.context import holding
from serving.errors import Invalid

HEADER = "x-priority"
_bulk: ContextVar[bool] = ContextVar("bulk", default=False)


def is_bulk() -> bool:
    """Of the work under way."""
    return _bulk.get()


def bulk_work(bulk: bool = True) -> AbstractContextManager[None]:
    """Around work that is."""
    return holding(_bulk, bulk)


def asked_for(header: str | None) -> bool:
    """What a request says of itself by `x-priority`.

    Raises:
        Invalid: it says something else.
    """
    value = "interactive" if header is None else header.strip().lower()
    if value not in ("interactive", "bulk"):
        raise Invalid("must be interactive or bulk", field=HEADER)
    return value == "bulk"
