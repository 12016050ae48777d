"""Tests of labels and of the positions of shapes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.evaluation.report import svg
from training.evaluation.report.markup import element, number
from training.evaluation.report.plots import Bar, Dot, Plane, Series, bars, dot_plot, lines
from training.evaluation.report.svg import WIDTH, Caption, Frame, linear

CAPTION = Caption("figure", "Title.", "Description.")
PLACES = st.lists(st.floats(0, 170), min_size=1, max_size=12)


@given(places=PLACES)
def test_labels_stand_apart_within_the_plot_in_the_order_of_their_places(places: list[float]) -> None:
    moved = svg.spread(places, 13, within=(0, 170))
    assert all(lower - upper >= 13 - 1e-6 for upper, lower in pairwise(sorted(moved)))
    assert all(-1e-6 <= place <= 170 + 1e-6 for place in moved)
    for (a, moved_a), (b, moved_b) in pairwise(sorted(zip(places, moved, strict=True))):
        assert a == b or moved_a < moved_b


def test_labels_that_stand_apart_stay_and_a_crowd_parts_about_its_middle() -> None:
    assert svg.spread([10, 100, 50], 13, within=(0, 170)) == [10, 100, 50]
    assert svg.spread([80, 80, 20], 10, within=(0, 170)) == [75, 85, 20]


@pytest.mark.parametrize("name", ["minilm", "a" * 14, "simcse-bert-base-seed-42", "simcse-bert-base-seed-43"])
def test_a_short_name_keeps_its_beginning_and_its_end(name: str) -> None:
    (short,) = svg.short([name], 14)
    assert len(short) <= 14
    assert (short[:6], short[-6:]) == (name[:6], name[-6:])


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert [number(value) for value in (-0.004, 0.0, -0.006, -1234.5)] == ["0.00", "0.00", "−0.01", "−1\u202f234.50"]


def test_the_curves_of_eight_are_eight_kinds_in_four_colours() -> None:
    kinds = [svg.mark(index) for index in range(8)]
    assert len(set(kinds)) == 8 and len({kind.split()[0] for kind in kinds}) == 4


def test_short_names_are_told_apart_by_what_differs() -> None:
    arms = [f"trained, {name}" for name in ("simcse", "gs-infonce", "imsimcse", "dclr")]
    assert svg.short(arms, 14) == ["traine… simcse", "traine…infonce", "traine…msimcse", "trained, dclr"]
    assert svg.short(["first-of-the-arms", "other-of-the-arms"], 9) == ["firs…arms", "othe…arms"]


@given(names=st.lists(st.text("ab", max_size=9), max_size=4), most=st.integers(2, 8))
def test_no_name_is_longer_than_there_is_room(names: list[str], most: int) -> None:
    for name, short in zip(names, svg.short(names, most), strict=True):
        assert short == name if len(name) <= most else len(short) == most
        beginning, _, end = short.partition("…")
        assert name.startswith(beginning) and name.endswith(end)


def test_bars_begin_at_zero_and_are_as_long_as_their_values() -> None:
    figure = bars(CAPTION, "Texts per second", [Bar("a", 50, "mark-0"), Bar("b", 100, "mark-0")], digits=0)
    short, long = figure.iter("rect")
    assert short.get("x") == long.get("x")
    assert 2 * float(short.get("width", "")) == pytest.approx(float(long.get("width", "")), abs=0.2)
    assert next(each for each in figure.iter("text") if each.get("class") == "tick").text == "0"


def test_bars_of_losses_and_gains_part_at_a_zero_that_is_on_the_axis() -> None:
    gains = [
        Bar("worse", -1.0, "mark-0", (-1.5, -0.5)),
        Bar("better", 2.0, "mark-0", (1.0, 4.0)),
        Bar("bare", 1.0, "mark-0"),
    ]
    figure = bars(CAPTION, "Gain", gains, digits=2)
    ticks = {each.text: float(each.get("x", "")) for each in figure.iter("text") if each.get("class") == "tick"}
    worse, better, bare = ((float(each.get("x", "")), float(each.get("width", ""))) for each in figure.iter("rect"))
    assert sum(worse) == pytest.approx(ticks["0"], abs=0.2) == pytest.approx(better[0], abs=0.2)
    assert better[1] == pytest.approx(2 * worse[1], abs=0.3) and bare[1] == pytest.approx(worse[1], abs=0.3)
    whiskers = [
        each for each in figure.iter("line") if each.get("class") == "whisker" and each.get("y1") == each.get("y2")
    ]
    low, high = (float(whiskers[1].get(end, "")) for end in ("x1", "x2"))
    assert len(whiskers) == 2 and high == pytest.approx(ticks["4"], abs=0.2)
    assert low - ticks["0"] == pytest.approx((high - ticks["0"]) / 4, abs=0.3)


def test_bars_with_whiskers_contain_zero_wherever_they_lie() -> None:
    figure = bars(CAPTION, "Gain", [Bar("a", -5.0, "mark-0", (-5.2, -4.8))], digits=2)
    assert "0" in {each.text for each in figure.iter("text") if each.get("class") == "tick"}


def test_dots_lie_under_their_ticks_and_a_deviation_reaches_to_both_sides() -> None:
    figure = dot_plot(CAPTION, "Spearman", [Dot("a", 70, "paper"), Dot("b", 76, "paper", deviation=4)])
    ticks = {each.text: float(each.get("x", "")) for each in figure.iter("text") if each.get("class") == "tick"}
    first, second = (float(each.get("cx", "")) for each in figure.iter("circle"))
    assert first == pytest.approx(ticks["70"])
    (spread,) = (each for each in figure.iter("line") if "spread" in each.get("class", ""))
    assert float(spread.get("x2", "")) - second == pytest.approx(second - float(spread.get("x1", "")), abs=0.2)
    assert float(spread.get("x2", "")) == pytest.approx(ticks["80"])


def test_higher_values_lie_higher() -> None:
    frame = Frame(linear("x", [0, 1]), linear("y", [0, 10]))
    assert frame.up(10) == frame.top < frame.up(5) < frame.up(0) == frame.foot
    assert frame.left == frame.across(0) < frame.across(1) == WIDTH - frame.right


def test_several_lines_say_their_names_and_one_does_not() -> None:
    plane = Plane(linear("Step", [0, 1]), linear("Loss", [0, 1]))
    a, b = (Series(name, "mark-0", [(0, 0), (1, 1)]) for name in ("first", "second"))

    def names(*series: Series) -> set[str | None]:
        return {each.text for each in lines(CAPTION, plane, series).iter("text")}

    assert names(a, b) >= {"first", "second"}
    assert not names(a) & {"first"}


def test_text_between_elements_keeps_its_place() -> None:
    made = element("p", "a", "A", element("b", "c"), "d", None, "e", class_="x")
    assert (made.text, made[0].tail, made.get("class")) == ("aA", "de", "x")
