"""Fixtures for tests of live indexes: the builder, and the limit of exact search."""

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
    """Search approximately, however few candidates a filter leaves."""
    for module in ("state", "building"):
        monkeypatch.setattr(f"serving.corpora.indexes.{module}.EXACT_ROWS", 50)


@pytest.fixture
def thread() -> Iterator[Builder]:
    builder = Builder()
    yield builder
    builder.close()
