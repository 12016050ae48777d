"""Pages of a corpus, of which each begins where the one before ended, as long as it is the same corpus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from serving.errors import Invalid
from serving.ports import Document


class Seen(NamedTuple):
    """The documents of a corpus up to the one of that key, in the order that they are listed in."""

    generation: str
    key: int


class Listed(NamedTuple):
    """A page of documents."""

    documents: list[Document]
    following: Seen | None
    """Where the next page begins, if there is one."""
    total: int
    """Documents on all pages."""
    warnings: Sequence[str]
    """See `Store.unmatched`."""


def check_generation(seen: str, now: str) -> None:
    """That what was seen of a corpus and what is there now have keys of one kind.

    Raises:
        Invalid: it was deleted and made anew, restored or embedded again in between.
    """
    if seen != now:
        raise Invalid(
            "of the corpus as it was before it was deleted, restored or embedded again: begin with the first page",
            field="cursor",
        )
