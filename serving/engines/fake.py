"""A model made of hashes: instant, deterministic, needing no bundle. For tests and for trying out the API.

A text's vector is the sum of a fixed random direction per word, so texts that share words are near each other.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from models.bundle import Golden, Manifest
from models.runtimes import Pair
from models.runtimes.choice import Choice
from models.tokenizer import Direction, Tokens
from serving.ports import Embedded, EngineError, EngineOptions, Floats, Model

DIM = 64
MAX_LENGTH = 128
VOCAB_SIZE = 8192
START, END = 0, 1
_WORD = re.compile(r"\w+|[^\w\s]")


@cache
def _directions() -> Floats:
    return np.random.default_rng(0).standard_normal((VOCAB_SIZE, DIM)).astype(np.float32)


class FakeEngine:
    """Words to ids by CRC-32, ids to random directions, directions to their sum."""

    name = "fake"
    precision = "fp32"
    device = "cpu"
    vocab_size = VOCAB_SIZE
    choice = Choice(Pair(name, precision))

    def tokenize(self, texts: Sequence[str], direction: Direction) -> list[Tokens]:
        """One token a word, between a start and an end token."""
        return [_tokens(text, direction) for text in texts]

    def embed(self, batch: Sequence[Tokens]) -> Embedded:
        """The sum of each text's directions, at unit length."""
        pooled = np.stack([_directions()[tokens.ids].sum(axis=0) for tokens in batch])
        norms = np.linalg.norm(pooled, axis=1)
        return Embedded(pooled / norms[:, None], norms)


def _tokens(text: str, direction: Direction) -> Tokens:
    ids = [2 + zlib.crc32(word.encode()) % (VOCAB_SIZE - 2) for word in _WORD.findall(text.lower())]
    room = MAX_LENGTH - 2
    kept = ids[:room] if direction == "right" else ids[-room:]
    return Tokens(np.array([START, *kept, END], dtype=np.int64), len(ids) + 2)


def open_bundle(folder: Path) -> Model:  # noqa: ARG001 - every engine is opened with a folder
    """The one fake model; the folder is not read."""
    engine = FakeEngine()
    text = "Hashing is not understanding."
    golden = Golden(text=text, vector=engine.embed(engine.tokenize([text], "right")).vectors[0].tolist())
    return Model(
        Manifest(
            name="fake",
            objective=None,
            backbone="hashed words",
            dim=DIM,
            max_length=MAX_LENGTH,
            pooling="sum",
            prompts={"query": "query: "},
            files={},
            fingerprint="fake-1",
            golden=[golden],
        ),
        load=_load,
        check=_check,
    )


def _load(options: EngineOptions) -> FakeEngine:
    _check(options)
    return FakeEngine()


def _check(options: EngineOptions) -> None:
    if options.precision not in (None, FakeEngine.precision):
        raise EngineError(f"--precision {options.precision}: the fake engine has {FakeEngine.precision} only")
