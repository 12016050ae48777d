"""Pages that nothing is in any more go back to the disk."""

from __future__ import annotations

from contextlib import suppress

from serving.errors import InsufficientStorage, Unhealthy
from serving.stores.connections import Connections

_STEP = 1024
"""Pages that are given back at once; between two steps others write."""


def give_back(connections: Connections) -> None:
    """See `Store`. Files of format 1 keep their pages, for what comes; so does a disk that fails."""
    with suppress(Unhealthy, InsufficientStorage):
        free, before = _free_pages(connections, 0), 0
        while free != before:
            before, free = free, _free_pages(connections, _STEP)


def _free_pages(connections: Connections, given_back: int) -> int:
    with connections.maintaining() as writer:
        if given_back:
            # A script, for it runs to the end: of a statement without columns Python takes one step, one page.
            writer.executescript(f"PRAGMA incremental_vacuum({given_back})")
        return int(writer.execute("PRAGMA freelist_count").fetchone()[0])
