"""A fake model that computes vectors from hashes, for tests and for trying out the API.

The fake model is fast and deterministic, and needs no bundle. Each word has a fixed random direction, and a text's
vector is the sum of its words' directions. Texts that share words therefore have similar vectors.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from models.bundle.bundle import Golden, Manifest
from models.bundle.tokenizer import Direction, Piece, TextPair, Tokens
from models.runtimes import Pair
from models.runtimes.base import Floats
from models.runtimes.choice import Choice
from serving.inference.engine import Embedded, EngineError, EngineOptions, Model

DIM = 64
MAX_LENGTH = 128
VOCAB_SIZE = 8192
START, END = 0, 1
INT8_LIMIT = 0.5
"""Calibrated range of int8 output. Components of the fake vectors are rarely larger."""
_WORD = re.compile(r"\w+|[^\w\s]")


@cache
def _directions() -> Floats:
    return np.random.default_rng(0).standard_normal((VOCAB_SIZE, DIM)).astype(np.float32)


class FakeEngine:
    """Engine that maps each word to an id by CRC-32, and each id to a random direction."""

    name = "fake"
    precision = "fp32"
    device = "cpu"
    streams = 1
    batch_tokens = 4096
    length_step = 1
    vocab_size = VOCAB_SIZE
    token_dim = DIM
    choice = Choice(Pair(name, precision))

    def tokenize(self, texts: Sequence[str], direction: Direction) -> list[Tokens]:
        """Return one token per word, between a start token and an end token."""
        return [_tokens(text, direction) for text in texts]

    def tokenize_pairs(self, pairs: Sequence[TextPair], direction: Direction) -> list[Tokens]:
        """Return for each pair the tokens of both texts together.

        Only cross-encoders embed the result, and the fake model is not a cross-encoder.
        """
        return [_tokens(f"{first} {second}", direction) for first, second in pairs]

    def pieces(self, texts: Sequence[str], special_tokens: bool) -> list[list[Piece]]:
        first, last = Piece(START, "<s>", True, None, None), Piece(END, "</s>", True, None, None)
        words = ([Piece(_id(one[0]), one[0], False, *one.span()) for one in _WORD.finditer(text)] for text in texts)
        return [[first, *pieces, last] if special_tokens else pieces for pieces in words]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the ids themselves as text, such as `#12`. Ids are hashes of words, so the words are lost."""
        return " ".join(f"#{id}" for id in ids if not (skip_special_tokens and id in (START, END)))

    def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:  # noqa: ARG002 - it has one thread
        """Return for each text the sum of its tokens' directions, scaled to unit length."""
        pooled = np.stack([_directions()[tokens.ids].sum(axis=0) for tokens in batch])
        norms = np.linalg.norm(pooled, axis=1)
        return Embedded(pooled / norms[:, None], norms)

    def embed_tokens(self, batch: Sequence[Tokens], *, alone: bool = False) -> list[Floats]:  # noqa: ARG002
        """Return for each text the random directions of its tokens. `embed` sums these directions."""
        return [_directions()[tokens.ids] for tokens in batch]


def _tokens(text: str, direction: Direction) -> Tokens:
    ids = [_id(word) for word in _WORD.findall(text)]
    room = MAX_LENGTH - 2
    kept = ids[:room] if direction == "right" else ids[-room:]
    return Tokens(np.array([START, *kept, END], dtype=np.int64), len(ids) + 2)


def _id(word: str) -> int:
    return 2 + zlib.crc32(word.lower().encode()) % (VOCAB_SIZE - 2)


def open_bundle(folder: Path) -> Model:  # noqa: ARG001 - every engine is opened with a folder
    """Return the fake model. The folder is never read."""
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
        int8_limit=INT8_LIMIT,
    )


def _load(options: EngineOptions) -> FakeEngine:
    _check(options)
    return FakeEngine()


def _check(options: EngineOptions) -> None:
    if options.precision not in (None, FakeEngine.precision):
        raise EngineError(f"--precision {options.precision}: the fake engine supports only {FakeEngine.precision}")
