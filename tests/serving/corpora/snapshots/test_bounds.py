"""Snapshots made to hurt: each length and number of one is held to the bounds of requests before its rows are read."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import orjson
import pytest

from serving.corpora.corpora import Corpora
from serving.corpora.snapshots import CONTENT, MANIFEST, Progress, Snapshots
from serving.corpora.stores import fields
from serving.corpora.stores.records import PASSAGE, DocumentRow, PassageRow, content_hash
from serving.corpora.values import MAX_POINTS, Corpus, Document, Span
from serving.errors import Invalid, TooLarge
from serving.operations.bounds import MAX_COUNT, Bounds
from tests.serving.corpora.snapshots.kept import content, ids
from tests.serving.corpora.snapshots.test_foreign import archive, manifest

BOUNDS = Bounds(text_bytes=1000, metadata_bytes=200, restored_bytes=10_000_000)
Change = Callable[[sqlite3.Connection], object]


@pytest.fixture
def bounded(corpora: Corpora, tmp_path: Path) -> Snapshots:
    return Snapshots(corpora, tmp_path / "snapshots", BOUNDS)


def packed(corpora: Corpora, tmp_path: Path, change: Change) -> Path:
    """The snapshot of a corpus of the documents `x` and `y`, changed by whoever sends it."""
    corpora.create(Corpus("other"))
    corpora.put("other", content("x", "y"))
    corpora.copy("other", tmp_path / "copy")
    with closing(sqlite3.connect(tmp_path / "copy", isolation_level=None)) as writer:
        change(writer)
    body, file = (tmp_path / "copy").read_bytes(), tmp_path / "given"
    file.write_bytes(archive((MANIFEST, manifest(body)), (CONTENT, body)))
    return file


def execute(statement: str, *values: object) -> Change:
    return lambda writer: writer.execute(statement, values)


def document(text: str = "text of x", id: str = "x", metadata: str = '{"n": 0}') -> Change:
    """The first one, with checksums that fit."""

    def change(writer: sqlite3.Connection) -> None:
        row = DocumentRow.of(1, Document(id, text, orjson.loads(metadata)), content_hash(text, None))
        update = "UPDATE documents SET id = ?, text = ?, metadata = ?, hash = ?, checksum = ? WHERE number = 1"
        writer.execute(update, (id, text, metadata, row.hash, row.checksum))

    return change


def passages(*spans: Span | None, document: int = 1) -> Change:
    def change(writer: sqlite3.Connection) -> None:
        writer.execute("DELETE FROM passages WHERE document = ?", (document,))
        rows = [PassageRow.of(document + 10 * i, document, span) for i, span in enumerate(spans)]
        writer.executemany(f"INSERT INTO passages ({PASSAGE}) VALUES (?, ?, ?, ?, ?)", rows)

    return change


def forged(table: str, column: str, value: str) -> Change:
    """A value of another type than that of its column, which SQLite writes while no column has one."""

    def change(writer: sqlite3.Connection) -> None:
        (declared,) = writer.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        loose = re.sub(r" (TEXT|BLOB|INTEGER(?! PRIMARY)|NOT NULL|STRICT)", "", declared)
        for statement, sql in ((f"UPDATE {table} SET {column} = {value}", loose), ("", declared)):
            writer.execute("PRAGMA writable_schema = ON")
            writer.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, table))
            writer.execute("PRAGMA writable_schema = RESET")
            writer.execute(statement)

    return change


PARTS = "the passages of document 1 are not parts of its text"
VECTOR = r"vectors: the vector of passage \d does not have length 1"
HOSTILE: dict[str, tuple[Change, str]] = {
    "a text": (document(text="é" * 501), r"documents\.text has more than the 1000 bytes .* \(--max-text-bytes\)"),
    "an id": (document(id="i" * 513), r"documents\.id has more than the 512 bytes"),
    "an id that is a path": (document(id=".."), r"document 1: id: must not be '\.\.'"),
    "metadata": (document(metadata=orjson.dumps({"a": "m" * 300}).decode()), r"metadata .* \(--max-metadata-bytes\)"),
    "metadata that are deep": (document(metadata='{"a":' + "[" * 40 + "]" * 40 + "}"), "document 1: .* nested deeper"),
    "metadata that are a list": (document(metadata="[]"), "document 1: metadata: must be an object"),
    "metadata that are none": (execute("UPDATE documents SET metadata = '{'"), "document 1: "),
    "a description": (execute("UPDATE corpora SET description = ?", "d" * 2001), "its description .* 2000 char"),
    "a long description": (execute("UPDATE corpora SET description = ?", "d" * 300_000), r"corpora\.description"),
    "a moment without an end": (execute("UPDATE corpora SET created = 9e999"), "its created .* finite"),
    "a moment before all": (execute("UPDATE corpora SET created = -1"), "its created"),
    "a recall target": (execute("UPDATE corpora SET recall_target = -5"), "its recall_target .* greater than 0"),
    "dimensions": (execute("UPDATE corpora SET dim = ?", 10**12), "its dim .* 65536"),
    "no dimensions": (execute("UPDATE corpora SET dim = 0"), "its dim"),
    "a fingerprint": (execute("UPDATE corpora SET fingerprint = ?", "f" * 256), "its fingerprint"),
    "another encoder's": (execute("UPDATE corpora SET fresh = ?", "f" * 256), "its fresh"),
    "a generation": (execute("UPDATE corpora SET generation = ?", "g" * 65), "its generation"),
    "a stemming": (execute("UPDATE corpora SET stemming = 'lancaster'"), "its stemming"),
    "synonyms": (execute("UPDATE corpora SET synonyms = ?", '{"a": [1]}'), "its synonyms"),
    "synonyms that are no JSON": (execute("UPDATE corpora SET synonyms = '{'"), "its synonyms"),
    "long synonyms": (
        execute("UPDATE corpora SET synonyms = ?", orjson.dumps({f"{i}": ["s" * 99] for i in range(999)}).decode()),
        "its synonyms .* 65536",
    ),
    "stop words": (execute("UPDATE corpora SET stop_words = ?", orjson.dumps(["w"] * 1001).decode()), "its stop_words"),
    "searched fields": (
        execute("UPDATE corpora SET searched_fields = ?", orjson.dumps({f"f{i}": 1.0 for i in range(9)}).decode()),
        "its searched_fields",
    ),
    "a weight": (execute("""UPDATE corpora SET searched_fields = '{"f": -1}'"""), "its searched_fields"),
    "a word": (execute("INSERT INTO vocabulary VALUES (?)", "w" * 129), r"vocabulary\.word"),
    "a map": (execute("""UPDATE corpora SET map = '{"fingerprint": "f"}'"""), "its map"),
    "a place that is too far": (
        execute("INSERT INTO places VALUES (1, 0, -9e999)"),
        "the position of passage 1 is beyond",
    ),
    "a place of no passage": (execute("INSERT INTO places VALUES (?, 0, 0)", 2**62), r"places\.key is not from 0"),
    "too many places": (
        execute(
            """WITH RECURSIVE counted(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM counted WHERE i < ?)
            INSERT INTO places SELECT i, 0, 0 FROM counted""",
            MAX_POINTS,
        ),
        "its map has more than 50000 points",
    ),
    "a version of Unicode": (execute("UPDATE corpora SET unicode = ?", "1" * 65), "its unicode"),
    "a name": (execute("UPDATE corpora SET name = '../c'"), "its name"),
    "a count": (execute("UPDATE corpora SET passages = ?", 2**62), "its passages"),
    "two corpora": (execute("INSERT INTO corpora (name, created) VALUES ('d', 0)"), "several corpora"),
    "the last key": (execute("UPDATE sqlite_sequence SET seq = ?", 2**63 - 1), r"sqlite_sequence\.seq is not from 0"),
    "a last key of text": (execute("UPDATE sqlite_sequence SET seq = 'one'"), r"sqlite_sequence\.seq is not from 0"),
    "a key": (execute("UPDATE documents SET number = ? WHERE number = 1", MAX_COUNT + 1), r"documents\.number"),
    "a time of expiry": (execute("UPDATE documents SET expires_at = ?", 2**62), r"documents\.expires_at .* year 9999"),
    "a key of a passage": (execute("UPDATE passages SET key = ? WHERE key = 1", MAX_COUNT + 1), r"passages\.key"),
    "a tombstone": (execute("INSERT INTO tombstones VALUES (?)", 2**62), r"tombstones\.key"),
    "a field": (execute("UPDATE fields SET path = ?", "p" * (4 * fields.MAX_PATH + 1)), r"fields\.path"),
    "a posting": (execute("UPDATE postings SET value = ?", "v" * (4 * fields.MAX_TEXT + 1)), r"postings\.value"),
    "words": (execute("UPDATE words_data SET block = zeroblob(1000000)"), r"words_data\.block"),
    "a passage beyond the text": (passages(Span(0, 5), Span(5, 100)), PARTS),
    "a passage from before the text": (passages(Span(-5, 3), Span(3, 5)), PARTS),
    "a passage that ends before it begins": (passages(Span(5, 3), Span(3, 9)), PARTS),
    "passages that are the text again and again": (passages(*[Span(0, 9)] * 9), PARTS),
    "two passages that are the whole": (passages(None, None), PARTS),
    "no passage": (passages(), PARTS),
    "a vector without numbers": (execute("UPDATE vectors SET vector = ?", np.full(4, np.nan, "<f4").tobytes()), VECTOR),
    "a vector of large numbers": (execute("UPDATE vectors SET vector = ?", np.full(4, 1e38, "<f4").tobytes()), VECTOR),
    "vectors of two lengths": (execute("UPDATE vectors SET vector = x'00' WHERE key = 2"), VECTOR),
    "a vector that is missing": (forged("vectors", "vector", "NULL"), r"vectors\.vector does not have the type BLOB"),
    "a vector of text": (
        forged("vectors", "vector", "'0123456789abcdef'"),
        r"vectors\.vector does not have the type BLOB",
    ),
    "an id of bytes": (forged("documents", "id", "CAST(id AS BLOB)"), r"documents\.id does not have the type TEXT"),
    "metadata that are missing": (
        forged("documents", "metadata", "NULL"),
        r"documents\.metadata does not have the type TEXT",
    ),
    "a text that is a number": (forged("documents", "text", "7"), r"documents\.text does not have the type TEXT"),
    "a part of text": (forged("passages", "start", "'0'"), r"passages\.start does not have the type INTEGER"),
    "a statement": (
        lambda writer: writer.execute(f"CREATE TABLE t (a DEFAULT '{'d' * 70_000}')"),
        "string or blob too big|is not a database|malformed",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_request_may_bring_comes_with_no_snapshot(
    corpora: Corpora, bounded: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    change, says = HOSTILE[name]
    file = packed(corpora, tmp_path, change)

    def reads(*_: object) -> None:
        raise AssertionError("it is read before it is checked")

    monkeypatch.setattr("serving.corpora.stores.corpus_file.migrate", reads)
    with pytest.raises(Invalid, match=says):
        bounded.restore("c", file, Progress())
    monkeypatch.undo()
    assert ids(corpora) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "change",
    [
        document(text="é" * 500),
        document(metadata=orjson.dumps({"a": "m" * 192}).decode()),
        execute("UPDATE corpora SET description = ?", "d" * 2000),
    ],
)
def test_what_a_request_may_bring_is_no_more_than_a_snapshot_may(
    corpora: Corpora, bounded: Snapshots, tmp_path: Path, change: Change
) -> None:
    """Checksums and postings that do not fit are found later."""
    file = packed(corpora, tmp_path, change)
    try:
        bounded.restore("c", file, Progress())
    except Invalid as error:
        assert "damaged: " in error.message
    else:
        assert ids(corpora) == ["x", "y"]


def test_what_it_unpacks_to_is_bounded(corpora: Corpora, tmp_path: Path) -> None:
    """Also of the server's own, whose limit may have been another."""
    roomy = Snapshots(corpora, tmp_path / "snapshots")
    own = roomy.path("c", roomy.create("c", Progress()).id)
    tight = Snapshots(corpora, tmp_path / "snapshots", Bounds(restored_bytes=10_000))
    for file in (own, packed(corpora, tmp_path, lambda _: None)):
        with pytest.raises(TooLarge, match=r"unpacks to \d+ bytes, more than the 10000 of --max-restore-bytes"):
            tight.restore("c", file, Progress())
        roomy.restore("c", file, Progress())


@pytest.mark.parametrize(
    ("fact", "value"),
    [("created", -1), ("created", 1e300), ("corpus", "../c"), ("corpus", "c" * 70), ("fingerprint", "f" * 256)]
    + [(count, 2**60) for count in ("documents", "passages")],
)
def test_a_manifest_says_nothing_that_can_not_be(
    snapshots: Snapshots, tmp_path: Path, fact: str, value: object
) -> None:
    file = tmp_path / "given"
    file.write_bytes(archive((MANIFEST, manifest(b"body", **{fact: value})), (CONTENT, b"body")))
    with pytest.raises(Invalid, match=f"its '{fact}' is missing or wrong"):
        snapshots.restore("c", file, Progress())
