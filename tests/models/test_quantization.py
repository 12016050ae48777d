from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.bundle import quantization

LIMIT = 0.25
NUMBERS = arrays(np.float32, (3, 20), elements=st.floats(-1, 1, width=32))


def unit(rows: int, dim: int, seed: int = 0) -> quantization.Floats:
    drawn = np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn


@given(NUMBERS)
def test_a_code_is_the_nearest_level_of_its_number(vectors: quantization.Floats) -> None:
    coded = quantization.int8(vectors, LIMIT)
    assert coded.dtype == np.int8
    back = coded.astype(np.float64) * LIMIT / quantization.GREATEST
    assert np.abs(back - vectors.clip(-LIMIT, LIMIT)).max() <= LIMIT / quantization.GREATEST / 2 + 1e-6


@given(NUMBERS)
def test_opposite_vectors_have_opposite_codes_and_uint8_is_128_more(vectors: quantization.Floats) -> None:
    coded = quantization.int8(vectors, LIMIT)
    assert np.array_equal(quantization.int8(-vectors, LIMIT), -coded)
    shifted = quantization.uint8(vectors, LIMIT)
    assert shifted.dtype == np.uint8
    assert np.array_equal(shifted.astype(int) - 128, coded)


def test_codes_have_the_cosines_of_their_vectors() -> None:
    vectors = unit(200, 64)
    coded = quantization.int8(vectors, quantization.limit(vectors)).astype(np.float64)
    coded /= np.linalg.norm(coded, axis=1, keepdims=True)
    assert np.abs(coded @ coded.T - vectors @ vectors.T).max() < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("dim", [16, 20])
def test_bits_are_sentence_transformers(dim: int) -> None:
    from sentence_transformers.util.quantization import quantize_embeddings  # This takes seconds.

    vectors = unit(5, dim)
    assert np.array_equal(quantization.ubinary(vectors), quantize_embeddings(vectors, precision="ubinary"))
    assert np.array_equal(quantization.binary(vectors), quantize_embeddings(vectors, precision="binary"))
    assert (quantization.binary(vectors).dtype.name, quantization.ubinary(vectors).dtype.name) == ("int8", "uint8")


def test_the_limit_is_that_of_the_calibration(tmp_path: Path) -> None:
    vectors = unit(50, 8)
    quantization.write(quantization.limit(vectors), tmp_path / "int8.json")
    assert quantization.read(tmp_path / "int8.json") == quantization.limit(vectors) == np.abs(vectors).max()


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"limit": 0}', '{"limit": "1"}', '{"limit": 2.0}', '{"limit": -0.5}']
)
def test_a_file_without_a_limit_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "int8.json").write_text(content)
    with pytest.raises(ValueError):
        quantization.read(tmp_path / "int8.json")


def test_the_calibration_is_prose_and_always_the_same() -> None:
    sentences = quantization.calibration()
    assert len(sentences) == quantization.SENTENCES
    assert sentences == quantization.calibration()
    assert all(sentence and ". " not in sentence for sentence in sentences)
