"""Tests of encoders in the user's own process: vectors equal the server's, and bad input is refused."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from isosphere import Encoder, load
from models.bundle.sources import SourceError
from models.bundle.tokenizer import CHARACTERS_PER_TOKEN
from serving.app import create_app
from serving.commands.starting import local_corpora
from serving.corpora.stores import STORES
from serving.inference.engines import ENGINES
from serving.service import Service
from serving.settings import Settings
from tests.serving.conftest import _wait_until_ready

TEXTS = ["a cat can sleep", "the dog", "", "the man can play a guitar in the street"]


def test_its_vectors_are_those_of_the_server(encoder: Encoder, tiny_bundle: Path, tmp_path: Path) -> None:
    texts = [*TEXTS, " " * encoder.max_length * CHARACTERS_PER_TOKEN + "the dog"]
    settings = Settings(data=tmp_path, no_demo=True, engine="onnxruntime", precision="fp32", bundle=str(tiny_bundle))
    service = Service(
        settings, ENGINES["onnxruntime"](tiny_bundle), local_corpora(settings, STORES["memory"](tmp_path))
    )
    with TestClient(create_app(service)) as client:
        _wait_until_ready(client)
        for options in ({}, {"normalize": False}, {"dimensions": 8}):
            answer = client.post("/embed", json={"inputs": texts, **options})
            truncated = encoder.truncated
            np.testing.assert_allclose(encoder.encode(texts, **options), answer.json(), atol=2e-6)
            assert encoder.truncated == truncated + 1
        alone = client.post("/embed", json={"inputs": TEXTS[0]}).json()
        assert np.array_equal(np.float32(alone).ravel(), encoder.encode(TEXTS[0]))


@given(st.lists(st.sampled_from(TEXTS), max_size=8))
def test_every_text_has_its_row_whatever_its_batch(encoder: Encoder, texts: list[str]) -> None:
    vectors = encoder.encode(texts)
    assert vectors.shape == (len(texts), encoder.dimensions) and vectors.dtype == np.float32
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(vector, encoder.encode(text), atol=2e-6)


def test_similarity_takes_texts_and_vectors(encoder: Encoder) -> None:
    cosines = encoder.similarity(TEXTS[0], TEXTS)
    assert cosines.shape == (1, 4) and cosines[0, 0] == pytest.approx(1, abs=1e-5)
    raw = encoder.encode(TEXTS, normalize=False)
    np.testing.assert_allclose(encoder.similarity(raw[0], raw), cosines, atol=1e-5)
    with pytest.raises(ValueError, match="32 and 8 dimensions"):
        encoder.similarity(raw, raw[:, :8])


def test_queries_and_documents_get_their_prompts(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.array_equal(encoder.encode_query(TEXTS), encoder.encode(TEXTS))
    monkeypatch.setattr(encoder, "prompts", {"query": "the dog ", "passage": "a cat "})
    assert np.array_equal(
        encoder.encode_query(TEXTS, dimensions=8), encoder.encode(TEXTS, prompt="the dog ", dimensions=8)
    )
    assert np.array_equal(encoder.encode_document(TEXTS[0]), encoder.encode(TEXTS[0], prompt="a cat "))


def test_texts_that_are_cut_are_told(encoder: Encoder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        encoder.encode(["the cat " * 100, "the cat"])
    assert "1 of 2 texts" in caplog.text and str(encoder.max_length) in caplog.text


@pytest.mark.parametrize(
    "options",
    [{"dimensions": 0}, {"dimensions": 33}, {"prompt_name": "query"}, {"prompt": "b", "prompt_name": "query"}],
)
def test_options_it_has_not_are_refused_by_name(encoder: Encoder, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(options))}: "):
        encoder.encode(TEXTS, **options)  # type: ignore[arg-type]  # what mypy allows is what is wrong with them


@pytest.mark.parametrize("options", [{"engine": "onnx"}, {"device": "gpu"}, {"threads": 0}])
def test_what_cannot_run_is_refused_by_name(tiny_bundle: Path, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(options))}: "):
        load(tiny_bundle, **options)  # type: ignore[arg-type]  # what mypy allows is what is wrong with them


@pytest.mark.parametrize("other", [1, 0, None, b""])
def test_what_is_no_text_is_named(encoder: Encoder, other: object) -> None:
    with pytest.raises(TypeError, match=f"texts: {other!r} is not a text"):
        encoder.encode(["a", other])  # type: ignore[list-item]


def test_texts_may_come_from_a_generator(encoder: Encoder) -> None:
    assert np.array_equal(encoder.encode(text for text in TEXTS), encoder.encode(TEXTS))


def test_a_name_that_no_folder_can_have_is_refused() -> None:
    with pytest.raises(SourceError, match="no such folder"):
        load("x" * 300)


def test_an_unknown_name_tells_the_nearest() -> None:
    with pytest.raises(SourceError, match="Did you mean default"):
        load("defautl")


@pytest.mark.slow
def test_an_encoder_of_the_project_needs_neither_torch_nor_the_server() -> None:
    code = (
        "import sys; from isosphere import load; encoder = load('default'); "
        "assert encoder.encode(['a', 'b']).shape == (2, 384); "
        "sys.exit(', '.join({'torch', 'transformers', 'fastapi', 'serving', 'training'} & {*sys.modules}) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
