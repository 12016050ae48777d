from __future__ import annotations

from pathlib import Path

import pytest

from models.encoder.encoder import Encoder
from training.data.corpus import Corpus


@pytest.fixture
def encoder(tiny_backbone: Path) -> Encoder:
    return Encoder.load(tiny_backbone, pooling="mean")


@pytest.fixture(scope="session")
def corpus(sentences: list[str]) -> Corpus:
    """Return a corpus of 240 different sentences."""
    return Corpus(lambda: sentences, name="sentences", held_out=0)


@pytest.fixture(scope="session")
def short_corpus(sentences: list[str]) -> Corpus:
    return Corpus(lambda: sentences[:20], name="short", held_out=0)
