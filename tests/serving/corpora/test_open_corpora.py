"""Corpora that come and go at the very moment another takes their name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from serving.corpora.corpora import Corpora
from serving.corpora.open_corpus import Indexes
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Content, Corpus, Document
from serving.errors import Conflict
from tests.serving.corpora.stores.contents import filled


def content(name: str) -> Content:
    return Content([Document(name, f"text {name}", {})], np.eye(1, 4, dtype=np.float32), "f")


def test_what_was_created_since_a_restore_looked_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(SqliteStore(tmp_path / "corpora"), "other", content("restored"))
    corpora = Corpora(store, Indexes(tmp_path / "indexes"))
    corpora.copy("other", tmp_path / "copy")
    naming = corpora._naming

    @contextmanager
    def overtaken() -> Iterator[None]:
        """There was no corpus when it was looked for; when the lock is had, there is."""
        monkeypatch.undo()
        corpora.create(Corpus("c"))
        corpora.put("c", content("mine"))
        with naming:
            yield

    monkeypatch.setattr(corpora, "_naming", overtaken())
    with pytest.raises(Conflict, match="created while it was being restored"):
        corpora.adopt("c", tmp_path / "copy")
    assert [document.id for document in corpora.page("c", None, 10)[0]] == ["mine"]
    corpora.put("c", content("more"))
    assert corpora.verify("c") == []
    corpora.close()
