"""Returning unused pages of a file to the disk."""

from __future__ import annotations

from contextlib import suppress

from serving.errors import InsufficientStorage, Unhealthy
from serving.stores import reading, words
from serving.stores.connections import Connections

_STEP = 1024
"""Pages returned per step. Other writers run between two steps."""
_PART = 0.25
"""If at least this share of a file is unused, pages are returned, however small the file is."""


def give_back(connections: Connections, least: int) -> None:
    """Implement `Store.give_back`.

    Files of format 1, and files on a failing disk, keep their unused pages for reuse.
    """
    with suppress(Unhealthy, InsufficientStorage):
        _forget_words(connections)
        free, before = _free_bytes(connections, 0), 0
        if not free or (free < least and free < _PART * _bytes(connections)):
            return
        while free != before:
            before, free = free, _free_bytes(connections, _STEP)
        connections.fold_soon()


def _forget_words(connections: Connections) -> None:
    """Clear the word index of a corpus without passages."""
    with connections.writing() as writer:
        if not reading.size(writer).passages:
            words.clear(writer)


def _bytes(connections: Connections) -> int:
    with connections.reading() as reader:
        return reading.size(reader).bytes


def _free_bytes(connections: Connections, given_back: int) -> int:
    with connections.maintaining() as writer:
        if given_back:
            # A script runs to its end. `execute` takes only one step of a statement without columns, so frees one page.
            writer.executescript(f"PRAGMA incremental_vacuum({given_back})")
        free = "SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size"
        return int(writer.execute(free).fetchone()[0])
