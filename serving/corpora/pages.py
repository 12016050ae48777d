"""Pages of a corpus's documents. Each page begins where the previous one ended, within one generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from serving.errors import Invalid
from serving.ports import Document


class Seen(NamedTuple):
    """The end of a page: the key of its last document, in listing order."""

    generation: str
    key: int


class Listed(NamedTuple):
    """A page of documents."""

    documents: list[Document]
    following: Seen | None
    """The end of this page, or None on the last page."""
    total: int
    """Documents on all pages."""
    warnings: Sequence[str]
    """Warnings of `Store.unmatched`."""


def check_generation(seen: str, now: str) -> None:
    """Check that a cursor belongs to the corpus's current generation, because keys change between generations.

    Raises:
        Invalid: since the cursor was made, the corpus was recreated, restored or embedded again.
    """
    if seen != now:
        raise Invalid(
            "of the corpus as it was before it was deleted, restored or embedded again: begin with the first page",
            field="cursor",
        )
