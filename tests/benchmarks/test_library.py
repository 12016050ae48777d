"""Tests of the contestants that are libraries."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import library
from benchmarks.peers.library import CTranslate2, Library


def test_a_library_gets_the_requests_in_the_order_in_which_servers_get_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    class Recording(Library):
        def __init__(self, *_: object) -> None:
            """Load nothing."""

        def embed(self, work: Any) -> library.Vectors:
            asked.append(work)
            return np.ones((len(work), 1), np.float32)

    texts = [str(number) for number in range(20)]
    turns = [{"texts": "short", "per_request": 2, "seconds": 1e-6}] * 3  # One call each.
    given = {"populations": {"short": {"texts": texts, "tokens": [3] * 20}}, "max_length": 256}
    monkeypatch.setattr(library, "Fastembed", Recording)
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(line) + "\n" for line in (given, *turns))))
    library.main("fastembed", "bundle")
    assert asked == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert [json.loads(line).get("tokens") for line in capsys.readouterr().out.splitlines()] == [None, 6, 6, 6]


def test_ctranslate2_computes_batches_of_similar_length() -> None:
    class Encoder:
        padded = 0

        def forward_batch(self, batch: list[list[int]]) -> SimpleNamespace:
            longest = max(map(len, batch))
            self.padded = max(self.padded, len(batch) * longest)
            states = [[[float(len(ids)), 1.0]] * len(ids) + [[9.0, 9.0]] * (longest - len(ids)) for ids in batch]
            return SimpleNamespace(last_hidden_state=np.array(states))

    lengths = [256, 4] * 100
    tokenizer: Any = SimpleNamespace(encode_batch=lambda work: [SimpleNamespace(ids=[1] * len(text)) for text in work])
    contestant = CTranslate2.__new__(CTranslate2)
    encoder = contestant._encoder = Encoder()
    contestant._tokenizer = tokenizer
    vectors = contestant.embed(["a" * length for length in lengths])
    np.testing.assert_allclose(vectors[:, 0] / vectors[:, 1], lengths, rtol=1e-5)
    assert encoder.padded <= CTranslate2.BATCH_TOKENS
