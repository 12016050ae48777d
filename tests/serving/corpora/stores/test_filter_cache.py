"""What filters matched is kept, and never beyond the moment that it is true of."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from serving.corpora.filter_language import compile_filter
from serving.corpora.filters import Filter
from serving.corpora.stores import matching
from serving.corpora.stores.corpus_file import Shared
from serving.corpora.stores.matching import KEPT_BYTES, FilterCache
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Corpus, Keys, Removal
from tests.serving.corpora.stores.contents import content, filled

ONE = compile_filter({"a": 1})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "corpora")
    opened.create(Corpus("c"))
    put(opened, "x", 1)
    put(opened, "y", 2)
    yield opened
    opened.close()


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[Filter]:
    """Filters that were answered from the postings."""
    seen: list[Filter] = []
    answer = matching.keys_matching

    def noted(reader: sqlite3.Connection, where: Filter) -> Keys:
        seen.append(where)
        return answer(reader, where)

    monkeypatch.setattr(matching, "keys_matching", noted)
    return seen


def put(store: SqliteStore, name: str, a: object) -> None:
    store.write("c", [content([(name, f"text of {name}", {"a": a})])])


def test_a_filter_is_looked_up_once(store: SqliteStore, looked_up: list[Filter]) -> None:
    assert [store.matching("c", compile_filter({"a": 1})).tolist() for _ in range(3)] == [[1]] * 3
    assert store.words("c", "text", 9, compile_filter({"a": 1})).keys.tolist() == [1]
    assert looked_up == [ONE]


def test_every_write_is_seen(store: SqliteStore) -> None:
    assert store.matching("c", ONE).tolist() == [1]
    put(store, "z", 1)
    assert store.matching("c", ONE).tolist() == [1, 3]
    put(store, "x", 2)  # in place of x
    assert store.matching("c", ONE).tolist() == [3]
    store.write("c", [Removal(["z"])])
    assert store.matching("c", ONE).tolist() == []
    put(store, "z", 1)  # as many documents as before
    assert store.matching("c", ONE).tolist() == [5]


def test_a_corpus_that_takes_its_place_is_seen(store: SqliteStore, tmp_path: Path) -> None:
    store.copy("c", tmp_path / "copy")
    store.write("c", [Removal(["x"])])
    put(store, "x", 2)
    assert store.matching("c", ONE).tolist() == []
    store.adopt("c", tmp_path / "copy")
    assert store.matching("c", ONE).tolist() == [1]


def test_true_is_not_one(store: SqliteStore) -> None:
    put(store, "z", True)
    assert store.matching("c", ONE).tolist() == [1]
    assert store.matching("c", compile_filter({"a": True})).tolist() == [3]


def test_what_is_kept_can_not_be_changed(store: SqliteStore) -> None:
    with pytest.raises(ValueError, match="read-only"):
        store.matching("c", ONE)[0] = 7


def test_what_does_not_fit_is_not_kept(
    store: SqliteStore, looked_up: list[Filter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._files["c"], "_filter_cache", FilterCache(max_bytes=100))
    assert [store.matching("c", ONE).tolist() for _ in range(2)] == [[1], [1]]
    assert len(looked_up) == 2


def test_corpora_that_began_alike_are_told_apart(store: SqliteStore, tmp_path: Path) -> None:
    store.copy("c", tmp_path / "copy")
    store.adopt("d", tmp_path / "copy")
    put(store, "z", 1)
    store.write("d", [content([("z", "text", {"a": 2})])])
    assert [store.matching(name, ONE).tolist() for name in ("c", "d", "c")] == [[1, 3], [1], [1, 3]]


@pytest.mark.parametrize(("room", "lookups"), [(KEPT_BYTES, 2), (1000, 3)])
def test_so_much_is_kept_of_all_corpora_together(
    room: int, lookups: int, tmp_path: Path, looked_up: list[Filter]
) -> None:
    """There is room for one at least; the second one takes its place, or does not have to."""
    with closing(SqliteStore(tmp_path, shared=Shared(filter_cache=FilterCache(room)))) as store:
        for name in ("c", "d"):
            filled(store, name, content([("x", "text", {"a": 1})]))
        assert [store.matching(name, ONE).tolist() for name in ("c", "c", "d", "d", "c")] == [[1]] * 5
    assert len(looked_up) == lookups
