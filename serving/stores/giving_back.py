"""Pages that nothing is in any more go back to the disk."""

from __future__ import annotations

from contextlib import suppress

from serving.errors import InsufficientStorage, Unhealthy
from serving.stores import reading, words
from serving.stores.connections import Connections

_STEP = 1024
"""Pages that are given back at once; between two steps others write."""
_PART = 0.25
"""Of a file, when it is worth it however small the file is."""


def give_back(connections: Connections, least: int) -> None:
    """See `Store`. Files of format 1 keep their pages, for what comes; so does a disk that fails."""
    with suppress(Unhealthy, InsufficientStorage):
        _forget_words(connections)
        free, before = _free_bytes(connections, 0), 0
        if not free or (free < least and free < _PART * _bytes(connections)):
            return
        while free != before:
            before, free = free, _free_bytes(connections, _STEP)
        connections.fold_soon()


def _forget_words(connections: Connections) -> None:
    """Of a corpus without any passage."""
    with connections.writing() as writer:
        if not reading.size(writer).passages:
            words.clear(writer)


def _bytes(connections: Connections) -> int:
    with connections.reading() as reader:
        return reading.size(reader).bytes


def _free_bytes(connections: Connections, given_back: int) -> int:
    with connections.maintaining() as writer:
        if given_back:
            # A script, for it runs to the end: of a statement without columns Python takes one step, one page.
            writer.executescript(f"PRAGMA incremental_vacuum({given_back})")
        free = "SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size"
        return int(writer.execute(free).fetchone()[0])
