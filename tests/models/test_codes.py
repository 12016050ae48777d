from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.bundle import codes

LIMIT = 0.25
NUMBERS = arrays(np.float32, (3, 20), elements=st.floats(-1, 1, width=32))


def unit(rows: int, dim: int, seed: int = 0) -> codes.Floats:
    drawn = np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn


@given(NUMBERS)
def test_a_code_is_the_nearest_level_of_its_number(vectors: codes.Floats) -> None:
    coded = codes.int8(vectors, LIMIT)
    assert coded.dtype == np.int8
    back = coded.astype(np.float64) * LIMIT / codes.GREATEST
    assert np.abs(back - vectors.clip(-LIMIT, LIMIT)).max() <= LIMIT / codes.GREATEST / 2 + 1e-6


@given(NUMBERS)
def test_opposite_vectors_have_opposite_codes_and_uint8_is_128_more(vectors: codes.Floats) -> None:
    coded = codes.int8(vectors, LIMIT)
    assert np.array_equal(codes.int8(-vectors, LIMIT), -coded)
    shifted = codes.uint8(vectors, LIMIT)
    assert shifted.dtype == np.uint8
    assert np.array_equal(shifted.astype(int) - 128, coded)


def test_codes_have_the_cosines_of_their_vectors() -> None:
    vectors = unit(200, 64)
    coded = codes.int8(vectors, codes.limit(vectors)).astype(np.float64)
    coded /= np.linalg.norm(coded, axis=1, keepdims=True)
    assert np.abs(coded @ coded.T - vectors @ vectors.T).max() < 0.01


@pytest.mark.parametrize("dim", [16, 20])
def test_bits_are_sentence_transformers(dim: int) -> None:
    from sentence_transformers.util.quantization import quantize_embeddings  # takes seconds

    vectors = unit(5, dim)
    assert np.array_equal(codes.ubinary(vectors), quantize_embeddings(vectors, precision="ubinary"))
    assert np.array_equal(codes.binary(vectors), quantize_embeddings(vectors, precision="binary"))
    assert (codes.binary(vectors).dtype.name, codes.ubinary(vectors).dtype.name) == ("int8", "uint8")


def test_the_limit_is_that_of_the_calibration(tmp_path: Path) -> None:
    vectors = unit(50, 8)
    codes.write(codes.limit(vectors), tmp_path / "int8.json")
    assert codes.read(tmp_path / "int8.json") == codes.limit(vectors) == np.abs(vectors).max()


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"limit": 0}', '{"limit": "1"}', '{"limit": 2.0}', '{"limit": -0.5}']
)
def test_a_file_without_a_limit_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "int8.json").write_text(content)
    with pytest.raises(ValueError):
        codes.read(tmp_path / "int8.json")


def test_the_calibration_is_prose_and_always_the_same() -> None:
    sentences = codes.calibration()
    assert len(sentences) == codes.SENTENCES
    assert sentences == codes.calibration()
    assert all(sentence and ". " not in sentence for sentence in sentences)
