"""Vectors that callers computed: which are legal, and how they are scaled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.ingest.vectors import VectorRule, unit_vector
from serving.errors import Conflict, Invalid
from serving.operations.bounds import MAX_VECTOR

NUMBERS = st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**64 - 1), min_size=1)


@given(NUMBERS.filter(any))
def test_a_vector_keeps_its_direction_and_gets_length_1(numbers: list[float]) -> None:
    unit = unit_vector(numbers)
    assert unit.dtype == np.float32
    assert abs(np.linalg.norm(unit.astype(np.float64)) - 1) < 1e-6
    largest = max(map(abs, numbers))
    scaled = np.array([number / largest for number in numbers])
    assert np.allclose(unit, scaled / np.linalg.norm(scaled), atol=1e-6)


@given(NUMBERS.filter(any))
def test_a_unit_vector_stays_as_it_is(numbers: list[float]) -> None:
    unit = unit_vector(numbers)
    assert np.array_equal(unit_vector(unit.tolist()), unit)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "has no direction"),
        ([0, -0.0], "has no direction"),
        ([1.0, float("nan")], "must be finite"),
        ([1.0, float("inf")], "must be finite"),
        ([10**400], "must be finite"),
        ([1.0, "2"], "list of numbers"),
        ([1.0, True], "list of numbers"),
        ([[1.0]], "list of numbers"),
        ("1,2", "list of numbers"),
        ({"0": 1.0}, "list of numbers"),
        ([1.0] * (MAX_VECTOR + 1), f"more than the {MAX_VECTOR}"),
    ],
)
def test_anything_else_is_refused(given: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        unit_vector(given, "line 3.vector")


def test_the_first_vector_sets_the_width() -> None:
    rule = VectorRule("c", own=True)
    with pytest.raises(Invalid, match=r"line 1\.vector"):
        rule.vector([0, 0, 0], "line 1.vector")
    assert rule.vector([0, 2], "line 2.vector") is not None
    with pytest.raises(Invalid, match=r"line 3\.vector: 3 numbers, but corpus 'c' has 2 dimensions"):
        rule.vector([0, 0, 1], "line 3.vector")
    with pytest.raises(Conflict, match=r"line 4\.vector: is required"):
        rule.vector(None, "line 4.vector")


def test_the_corpus_of_an_encoder_takes_none() -> None:
    rule = VectorRule("c", own=False)
    assert rule.vector(None, "documents.0.vector") is None
    with pytest.raises(Conflict, match=r"documents\.0\.vector: an encoder embeds corpus 'c'"):
        rule.vector([1.0], "documents.0.vector")
