"""Corpora on disk, one of three documents among them, and their snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.corpora import snapshots as of_snapshots
from serving.corpora.corpora import Corpora
from serving.corpora.open_corpus import Indexes
from serving.corpora.snapshots import Snapshots
from serving.corpora.stores import STORES
from serving.corpora.values import Corpus
from tests.serving.corpora.snapshots.kept import content


@pytest.fixture
def corpora(tmp_path: Path) -> Iterator[Corpora]:
    opened = Corpora(STORES["sqlite"](tmp_path / "corpora"), Indexes(tmp_path / "indexes"))
    opened.create(Corpus("c", description="kept"))
    opened.put("c", content("a", "b", "c"))
    yield opened
    opened.close()


@pytest.fixture
def snapshots(corpora: Corpora, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    monkeypatch.setattr(of_snapshots, "RATIO_EXEMPT_BYTES", 1 << 20)  # so that a bomb need not be one of a gigabyte
    return Snapshots(corpora, tmp_path / "snapshots")
