"""Re-embedding: vectors of a new encoder are stored beside the served vectors until every passage has one."""

from __future__ import annotations

import secrets
import sqlite3

from serving.ports import Floats, Keys
from serving.stores import records, vectors
from serving.stores.records import PASSAGE, PassageRow

_LACKING = (
    f"SELECT {PASSAGE} FROM passages WHERE key > ? AND NOT EXISTS (SELECT 1 FROM fresh WHERE fresh.key = passages.key)"
)


def stale(reader: sqlite3.Connection, fingerprint: str, limit: int) -> list[tuple[int, str]]:
    """Implement `Store.stale`."""
    serving, fresh = reader.execute("SELECT fingerprint, fresh FROM corpora").fetchone()
    if serving == fingerprint:
        return []
    if fresh != fingerprint:
        rows = reader.execute(f"SELECT {PASSAGE} FROM passages ORDER BY key LIMIT ?", (limit,)).fetchall()
    else:
        # Vectors mostly come in order of keys. Looking beyond the last key first avoids a scan of all.
        (last,) = reader.execute("SELECT coalesce(max(key), 0) FROM fresh").fetchone()
        rows = reader.execute(f"{_LACKING} ORDER BY key LIMIT ?", (last, limit)).fetchall()
        if len(rows) < limit:
            rows = reader.execute(f"{_LACKING} ORDER BY key LIMIT ?", (0, limit)).fetchall()
    passages = [PassageRow._make(row) for row in rows]
    documents = records.documents(reader, sorted({passage.document for passage in passages}))
    return [(row.key, records.part(documents[row.document].text, row.span())) for row in passages]


def refresh(writer: sqlite3.Connection, fingerprint: str, keys: Keys, matrix: Floats) -> None:
    """Implement `Store.refresh`. Passages that were removed meanwhile are skipped."""
    (fresh,) = writer.execute("SELECT fresh FROM corpora").fetchone()
    if fresh != fingerprint:
        writer.execute("DELETE FROM fresh")
        writer.execute("UPDATE corpora SET fresh = ?", (fingerprint,))
    writer.executemany(
        "INSERT OR REPLACE INTO fresh (key, vector, checksum) SELECT key, ?, ? FROM passages WHERE key = ?",
        ((vector, checksum, key) for key, vector, checksum in vectors.rows(keys.tolist(), matrix)),
    )


def swap(writer: sqlite3.Connection, fingerprint: str) -> bool:
    """Implement `Store.swap`. The tables exchange names; no vector is copied."""
    serving, fresh, passages = writer.execute("SELECT fingerprint, fresh, passages FROM corpora").fetchone()
    if serving == fingerprint:
        return True
    if passages and (fresh != fingerprint or writer.execute(f"{_LACKING} LIMIT 1", (0,)).fetchone()):
        return False
    writer.execute("ALTER TABLE vectors RENAME TO spent")
    writer.execute("ALTER TABLE fresh RENAME TO vectors")
    writer.execute("ALTER TABLE spent RENAME TO fresh")
    writer.execute("DELETE FROM fresh")
    writer.execute(
        "UPDATE corpora SET fingerprint = ?, fresh = NULL, generation = ?, "
        "dim = (SELECT length(vector) / 4 FROM vectors LIMIT 1)",
        (fingerprint, secrets.token_hex(8)),
    )
    return True
