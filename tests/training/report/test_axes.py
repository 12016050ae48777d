"""Tests of axes: ticks and positions."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.evaluation.report import svg
from training.evaluation.report.svg import Axis

VALUES = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1e9), st.floats(-1e9, -1e-6)), min_size=1, max_size=20
)  # fmt: skip
POSITIVE = st.lists(st.floats(1e-12, 1e9), min_size=1, max_size=20)


def inside(axis: Axis, values: list[float]) -> bool:
    return all(-1e-6 <= axis.at(value) <= 1 + 1e-6 for value in values)


@given(values=VALUES, from_zero=st.booleans())
def test_linear_ticks_enclose_the_data_and_are_round(values: list[float], from_zero: bool) -> None:
    axis = svg.linear("x", values, from_zero=from_zero)
    assert inside(axis, values)
    assert 2 <= len(axis.ticks) <= 6
    steps = [right - left for left, right in pairwise(axis.ticks)]
    assert steps == pytest.approx([steps[0]] * len(steps))
    leading = steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-6)
    assert min(abs(leading - factor) for factor in (1, 2, 5)) < 1e-3
    if from_zero:
        assert axis.ticks[0] <= 0 <= axis.ticks[-1]


@given(values=VALUES)
def test_ticks_say_different_things_that_are_true(values: list[float]) -> None:
    axis = svg.linear("x", values)
    said = [float(name.replace("−", "-")) for name in axis.names]
    assert said == pytest.approx(list(axis.ticks), rel=1e-9)
    assert len(set(axis.names)) == len(axis.names)


@given(values=POSITIVE)
def test_decades_enclose_the_data(values: list[float]) -> None:
    axis = svg.decades("x", values)
    assert inside(axis, values)
    assert 2 <= len(axis.ticks) <= 7
    exponents = [math.log10(tick) for tick in axis.ticks]
    assert exponents == pytest.approx([round(exponent) for exponent in exponents])


@given(values=POSITIVE.filter(lambda values: min(values) < max(values)))
def test_a_larger_value_lies_further(values: list[float]) -> None:
    low, high = min(values), max(values)
    for axis in (svg.linear("x", values), svg.decades("x", values)):
        assert axis.at(low) <= axis.at(high)


def test_an_axis_from_zero_begins_there_and_others_near_the_data() -> None:
    assert svg.linear("x", [70.0, 78.0], from_zero=True).ticks[0] == 0
    assert svg.linear("x", [70.0, 78.0]).ticks == (70, 72, 74, 76, 78)
    assert svg.decades("x", [2e-4, 0.05]).names == ("10⁻⁴", "10⁻³", "10⁻²", "10⁻¹")


@pytest.mark.parametrize("values", [[5e-324], [0.0], [0.3, 0.1 + 0.2], [-7.0]])
@pytest.mark.parametrize("from_zero", [True, False])
def test_values_without_a_range_have_an_axis_too(values: list[float], from_zero: bool) -> None:
    axis = svg.linear("x", values, from_zero=from_zero)
    assert inside(axis, values)
    assert axis.ticks[0] < axis.ticks[-1]


def test_sizes_are_their_own_ticks() -> None:
    axis = svg.sizes("batch", [256, 64, 128, 64])
    assert axis.names == ("64", "128", "256")
    assert axis.at(128) == pytest.approx(0.5)


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf]])
def test_what_has_no_place_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="loss"):
        svg.linear("loss", values)
    with pytest.raises(ValueError, match="loss"):
        svg.decades("loss", values)
