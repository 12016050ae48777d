"""Pages of a collection.

A page has documents in the order of ids or in given orders, or passages that another collection does not have.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from serving.corpora.arranging import first_sorted
from serving.corpora.stores import records
from serving.corpora.stores.milvus.rows import (
    UNREAD,
    WHOLE,
    key,
    passage_text,
    unread,
)
from serving.corpora.stores.milvus.table import Rows, first_of
from serving.corpora.values import (
    Document,
    Place,
    Sort,
)

READ_TOGETHER = 16
"""Maximum number of documents of a page that are read in one step, because each may be large."""


def read_page(table: Rows, matching: str, after: str, limit: int) -> tuple[list[Document], bool]:
    """Return the documents of a page, and whether more follow. A page ends at `PAGE_CHARACTERS`."""
    documents: list[Document] = []
    left = records.PAGE_CHARACTERS
    for block in table.each(WHOLE, first_of(matching), after, limit + 1, READ_TOGETHER):
        whole = table.assembled(block)
        for row in block:
            if len(documents) == limit or left <= 0:
                return documents, True
            document = whole[row["document"]]
            documents.append(document)
            left -= len(document.text) + len(orjson.dumps(document.metadata))
    return documents, False


def read_sorted_page(
    table: Rows, matching: str, orders: Sequence[Sort], after: Place | None, limit: int
) -> tuple[list[Document], bool]:
    """Return the documents of a page in the given orders, and whether more follow."""
    found = (row for block in table.each(UNREAD, first_of(matching)) for row in block)
    chosen = first_sorted(((row["document"], unread(row)) for row in found), orders, after, limit + 1)
    documents, left = list[Document](), records.PAGE_CHARACTERS
    for start in range(0, min(limit, len(chosen)), READ_TOGETHER):
        some = chosen[start : min(limit, start + READ_TOGETHER)]
        whole = table.assembled(table.get([key(id, 0) for id in some], WHOLE))
        for document in (whole[id] for id in some if id in whole):
            if left <= 0:
                return documents, True
            documents.append(document)
            left -= len(document.text) + len(orjson.dumps(document.metadata))
    return documents, len(chosen) > limit


def read_missing(table: Rows, fresh: Rows | None, after: str, limit: int) -> list[tuple[str, str]]:
    """Return key and text of up to `limit` passages after the key `after` that `fresh` does not have."""
    found: list[tuple[str, str]] = []
    for block in table.each(WHOLE, after=after):
        there = {row["id"] for row in fresh.get([row["id"] for row in block], ["id"])} if fresh else set()
        found += [(row["id"], passage_text(row)) for row in block if row["id"] not in there]
        if len(found) >= limit:
            break
    return found[:limit]
