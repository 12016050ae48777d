"""What builds, and where exact search ends, in the tests of a live index."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serving.corpora.indexes.building import Builder
from tests.serving.corpora.indexes.following import Turns


@pytest.fixture
def builder() -> Turns:
    return Turns()


@pytest.fixture
def approximate(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few candidates a filter leaves."""
    for module in ("main", "tuning"):
        monkeypatch.setattr(f"serving.corpora.indexes.{module}.EXACT_ROWS", 50)


@pytest.fixture
def thread() -> Iterator[Builder]:
    builder = Builder()
    yield builder
    builder.close()
