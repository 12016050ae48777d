"""Tests of the benchmark of corpora on Milvus."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.search import milvus


def test_an_existing_corpus_is_neither_filled_nor_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    existing = SimpleNamespace(corpora=SimpleNamespace(create=lambda _: False))  # Any other call is an error.
    monkeypatch.setattr(milvus, "OnMilvus", lambda *_: existing)
    for slow in ("on_disk", "questions"):
        monkeypatch.setattr(milvus, slow, lambda *_: None)
    with pytest.raises(FileExistsError, match="milvus://host:19530 has a corpus 'c'"):
        milvus.measure(10, "milvus://host:19530")
