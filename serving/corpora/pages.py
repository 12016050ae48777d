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
    """The end of this page, if there is a next one."""
    total: int
    """Documents on all pages."""
    warnings: Sequence[str]
    """Warnings of `Store.unmatched`."""


def check_generation(seen: str, now: str) -> None:
    """Check that a cursor and the corpus are of the same generation, so that their keys agree.

    Raises:
        Invalid: the corpus was deleted and created again, restored or embedded again in between.
    """
    if seen != now:
        raise Invalid(
            "of the corpus as it was before it was deleted, restored or embedded again: begin with the first page",
            field="cursor",
        )
