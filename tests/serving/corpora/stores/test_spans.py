"""Spans are read where a document was cut, and there alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from serving.corpora.stores.connections import Connections
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Chunking, Content, Removal
from tests.serving.corpora.stores.contents import content, filled

WHOLE = content([(f"d{i}", f"text {i}", {"i": i}) for i in range(9)])
ONE_PART = content([("cut", "  one part", {})], chunking=Chunking(2, 0))
PARTS = content([("cut", "a text of five words", {})], chunking=Chunking(2, 0))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = filled(SqliteStore(tmp_path), "c", WHOLE)
    yield opened
    opened.close()


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those that read."""
    seen: list[str] = []
    reading = Connections.reading

    @contextmanager
    def traced(connections: Connections) -> Iterator[sqlite3.Connection]:
        with reading(connections) as reader:
            reader.set_trace_callback(seen.append)
            yield reader

    monkeypatch.setattr(Connections, "reading", traced)
    return seen


@pytest.mark.parametrize("cut", [ONE_PART, PARTS], ids=["one part", "parts"])
def test_passages_are_looked_up_while_one_has_a_span(store: SqliteStore, statements: list[str], cut: Content) -> None:
    def looked_up() -> bool:
        statements.clear()
        found = store.passages("c", range(1, 20))
        assert sum(passage.span is None for passage in found.values()) == 9
        return any("FROM passages" in statement for statement in statements)

    assert not looked_up()
    store.write("c", [cut])
    assert looked_up()
    store.write("c", [Removal(["cut"])])
    assert not looked_up()


@pytest.mark.parametrize("count", ["spans", "passages"])
def test_a_count_that_is_wrong_loses_no_part(store: SqliteStore, tmp_path: Path, count: str) -> None:
    """It has no checksum: `verify` says so, and until then the other counts differ."""
    store.write("c", [PARTS])
    before = store.passages("c", range(1, 20))
    assert len(before) == 12
    with closing(sqlite3.connect(tmp_path / "c.sqlite")) as database, database:
        database.execute(f"UPDATE corpora SET {count} = {0 if count == 'spans' else 10}")
    assert store.passages("c", range(1, 20)) == before
    assert store.verify("c") != []
