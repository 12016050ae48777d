"""Ids that were written or removed since an upload was accepted.

An upload takes effect at its acceptance, so later writes win. But its job may run for long, and after a restart it
repeats work. Until the job ends, the ids of all other writes are recorded. The job skips its rows with these ids.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from serving.ports import Content
from serving.stores.blocks import blocks, marks

TABLES = (
    "CREATE TABLE uploads (job TEXT PRIMARY KEY) STRICT, WITHOUT ROWID",
    """CREATE TABLE overtaken (
        job TEXT NOT NULL REFERENCES uploads(job) ON DELETE CASCADE,
        id TEXT NOT NULL,
        PRIMARY KEY (job, id)
    ) STRICT, WITHOUT ROWID""",
)


def accepted(reader: sqlite3.Connection) -> list[str]:
    """Return the jobs for which ids are recorded, sorted."""
    return [job for (job,) in reader.execute("SELECT job FROM uploads ORDER BY job")]


def accept(writer: sqlite3.Connection, job: str) -> None:
    """Start recording the ids of other writes for `job`."""
    writer.execute("INSERT OR IGNORE INTO uploads (job) VALUES (?)", (job,))


def release(writer: sqlite3.Connection, job: str) -> None:
    """Stop recording ids for `job`, which has ended."""
    writer.execute("DELETE FROM uploads WHERE job = ?", (job,))


def note(writer: sqlite3.Connection, ids: Sequence[str]) -> None:
    """Record `ids` that a request writes or removes outside of any job."""
    for job in accepted(writer):
        writer.executemany("INSERT OR IGNORE INTO overtaken (job, id) VALUES (?, ?)", ((job, id) for id in ids))


def remaining(reader: sqlite3.Connection, content: Content) -> Content:
    """Return the content of a job without documents that a later write replaced or removed."""
    ids = [document.id for document in content.documents]
    gone = set[str]()
    for block in blocks(ids):
        select = f"SELECT id FROM overtaken WHERE job = ? AND id IN ({marks(block)})"
        gone.update(id for (id,) in reader.execute(select, (content.job, *block)))
    if not gone:
        return content
    stay = [id not in gone for id in ids]
    rows = stay if content.spans is None else np.repeat(stay, [len(own) for own in content.spans])
    return replace(
        content,
        documents=[document for document, stays in zip(content.documents, stay, strict=True) if stays],
        vectors=content.vectors[np.asarray(rows, dtype=np.bool_)],
        spans=content.spans and [own for own, stays in zip(content.spans, stay, strict=True) if stays],
    )
