"""Fixtures of the tests of `load` and `isosphere embed`."""

from __future__ import annotations

from pathlib import Path

import pytest

from isosphere import Encoder, load
from isosphere.embed import embedding
from tests.isosphere.embedding import TEXTS, text_file


@pytest.fixture(scope="module")
def encoder(tiny_bundle: Path) -> Encoder:
    return load(tiny_bundle, engine="onnxruntime", precision="fp32")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "ROWS", 4)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return text_file(tmp_path / "a.txt", TEXTS * 3)
