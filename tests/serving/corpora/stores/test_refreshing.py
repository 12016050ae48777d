"""Another encoder's vectors come beside those that serve, survive a restart and take over at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Chunking, Corpus, Removal
from tests.serving.corpora.stores.contents import Row, content, filled, vectors

ROWS: list[Row] = [(f"d{i}", f"text {i} of several words", {}) for i in range(30)]


def refresh(store: SqliteStore, limit: int) -> None:
    stale = store.stale("c", "g", limit)
    store.refresh("c", "g", np.array([key for key, _ in stale]), vectors("g", [text for _, text in stale]))


def test_it_goes_on_after_a_restart(tmp_path: Path) -> None:
    store = filled(SqliteStore(tmp_path), "c", content(ROWS, chunking=Chunking(3, 0)))
    passages = store.size("c").passages
    assert passages == 60
    refresh(store, 25)
    store.close()
    store = SqliteStore(tmp_path)
    assert len(store.stale("c", "g", 100)) == passages - 25
    assert not store.swap("c", "g")
    assert store.corpus("c").fingerprint == "f"
    store.write("c", [content([("d0", "changed", {})]), Removal(["d1"]), content([("new", "late", {})])])
    while not store.swap("c", "g"):
        refresh(store, 7)
    for keys, matrix in store.vectors("c"):
        held = store.passages("c", keys.tolist())
        parts = [held[key].document.text[slice(*held[key].span or (None,))] for key in keys.tolist()]
        assert (matrix == vectors("g", parts)).all()
    assert store.verify("c") == []
    store.close()


def test_another_encoder_starts_anew(tmp_path: Path) -> None:
    store = filled(SqliteStore(tmp_path), "c", content(ROWS))
    refresh(store, 30)
    store.refresh("c", "h", np.array([1]), vectors("h", ["x"]))
    assert not store.swap("c", "g")
    assert len(store.stale("c", "g", 100)) == 30
    assert len(store.stale("c", "h", 100)) == 29
    store.close()


def test_a_gap_is_found(tmp_path: Path) -> None:
    store = filled(SqliteStore(tmp_path), "c", content(ROWS))
    store.refresh("c", "g", np.array([3, 9]), vectors("g", ["a", "b"]))
    assert [key for key, _ in store.stale("c", "g", 5)] == [10, 11, 12, 13, 14]
    assert {key for key, _ in store.stale("c", "g", 100)} == set(range(1, 31)) - {3, 9}
    store.close()


def test_the_generation_changes_and_the_disk_comes_back(tmp_path: Path) -> None:
    rows: list[Row] = [(f"d{i}", f"{i}", {}) for i in range(2000)]
    store = filled(SqliteStore(tmp_path), "c", content(rows))
    before, generation = store.size("c").bytes, store.corpus("c").generation
    refresh(store, 2000)
    assert store.size("c").bytes > before
    assert store.swap("c", "g")
    store.give_back("c")
    assert store.size("c").bytes <= before, "three dimensions for four"
    assert store.corpus("c").generation != generation
    assert store.verify("c") == []
    store.close()


def test_an_empty_corpus_swaps_at_once(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.create(Corpus("c", fingerprint="f", dim=4))
    assert store.swap("c", "g")
    assert store.corpus("c").fingerprint == "g"
    store.write("c", [content([("a", "b", {})], "g")])
    assert store.corpus("c").dim == 3
    store.close()
