"""Axes and shapes of plots. The style sheet sets colours and fonts for each kind of shape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

import numpy as np

from training.evaluation.report.markup import Part, element

WIDTH = 380
MARKS = 4
"""Number of styles of marks in the style sheet."""

Point = tuple[float, float]

# Axes of plots, with round ticks that enclose the data.

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axis:
    """A scale from its first tick to its last."""

    label: str
    ticks: tuple[float, ...]
    names: tuple[str, ...]
    """Labels of the ticks."""
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the position of `value`, from 0 at the first tick to 1 at the last."""
        low, high, here = (math.log(each) if self.logarithmic else each for each in (*self.ends, value))
        return (here - low) / (high - low)

    @property
    def ends(self) -> tuple[float, float]:
        """Return the first tick and the last."""
        return self.ticks[0], self.ticks[-1]


UNMARKED = Axis("", (0.0, 1.0), ("", ""))
"""A y axis without scale and ticks, for plots whose rows are labelled by name."""


def linear(label: str, values: Iterable[float], *, from_zero: bool = False, most: int = 6) -> Axis:
    """Make an axis with at most `most` ticks at multiples of 1, 2 or 5 times a power of ten.

    Raises:
        ValueError: there are no values, or a value is not finite.
    """
    low, high = _range(label, values)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    # A difference in the last bits is a rounding error, not a range.
    if math.isclose(low, high, rel_tol=1e-9, abs_tol=1e-12):
        margin = abs(low) / 10 if abs(low) > 1e-9 else 0.5
        low, high = (low, high + margin) if from_zero else (low - margin, high + margin)
    step, first, last = next(
        (step, first, last)
        for step in _steps(high - low, most)
        if (last := math.ceil(high / step - 1e-9)) - (first := math.floor(low / step + 1e-9)) < most
    )
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    ticks = tuple(round(i * step, digits) + 0.0 for i in range(first, last + 1))
    return Axis(label, ticks, tuple(_name(tick, digits) for tick in ticks))


def decades(label: str, values: Iterable[float], *, most: int = 6) -> Axis:
    """Make a logarithmic axis for positive values, with ticks at powers of ten.

    Raises:
        ValueError: there are no values, or a value is not finite.
    """
    low, high = _range(label, values)
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    step = math.ceil((last - first) / (most - 1))
    exponents = range(first - (first - last) % step, last + 1, step)
    if exponents[0] > first:
        exponents = range(exponents[0] - step, last + 1, step)
    names = tuple(f"10{str(exponent).translate(SUPERSCRIPTS)}" for exponent in exponents)
    return Axis(label, tuple(10.0**exponent for exponent in exponents), names, logarithmic=True)


def sizes(label: str, values: Iterable[int]) -> Axis:
    """Make a logarithmic axis with a tick at each of `values`. There must be at least two different values."""
    ticks = sorted(set(values))
    return Axis(label, tuple(map(float, ticks)), tuple(map(str, ticks)), logarithmic=True)


def _range(label: str, values: Iterable[float]) -> tuple[float, float]:
    known = [float(value) for value in values]
    if not known or not all(map(math.isfinite, known)):
        raise ValueError(f"{label}: {'a value is not finite' if known else 'no values'}")
    return min(known), max(known)


def _steps(span: float, most: int) -> Iterator[float]:
    """Yield possible distances between ticks, in increasing order and without end: 1, 2 and 5 times powers of ten.

    The first distance is at most `span` / `most`.
    """
    exponent = math.floor(math.log10(span / most))
    while True:
        yield from (factor * 10.0**exponent for factor in (1, 2, 5))
        exponent += 1


def _name(tick: float, digits: int) -> str:
    return f"{tick:.{digits}f}".replace("-", "−")


# Shapes: the frame between two axes, and its content.


@dataclass(frozen=True)
class Caption:
    """The text of a figure. `name` is unique on the page, and the description is for screen readers."""

    name: str
    title: str
    description: str


@dataclass(frozen=True)
class Frame:
    """The rectangle between the axes, in units of the drawing. The y coordinate grows downwards."""

    x: Axis
    y: Axis
    left: float = 46
    right: float = 14
    top: float = 14
    height: float = 170
    """Height of the y axis."""

    @property
    def foot(self) -> float:
        """Return the y coordinate of the x axis."""
        return self.top + self.height

    def across(self, value: float) -> float:
        """Return the x coordinate of a value."""
        return self.left + self.x.at(value) * (WIDTH - self.left - self.right)

    def up(self, value: float) -> float:
        """Return the y coordinate of a value."""
        return self.foot - self.y.at(value) * self.height

    def axes(self) -> list[Element]:
        """Draw both axes: hairlines, ticks and labels."""
        end = WIDTH - self.right
        levels = zip(self.y.ticks, self.y.names, strict=True)
        return [
            *(
                part
                for tick, name in levels
                for part in (
                    line((self.left, self.up(tick)), (end, self.up(tick)), "grid"),
                    text((self.left - 6, self.up(tick) + 4), name, "tick", anchor="end"),
                )
            ),
            *self.below(),
            element(
                "text", self.y.label, class_="label", text_anchor="middle",
                transform=f"translate(11 {_n(self.top + self.height / 2)}) rotate(-90)",
            ),
        ]  # fmt: skip

    def below(self) -> list[Element]:
        """Draw the x axis."""
        places = [self.across(tick) for tick in self.x.ticks]
        middle = (self.left + WIDTH - self.right) / 2
        return [
            line((self.left, self.foot), (WIDTH - self.right, self.foot), "axis"),
            *(line((place, self.foot), (place, self.foot + 4), "axis") for place in places),
            *(
                text((place, self.foot + 16), name, "tick", anchor="middle")
                for place, name in zip(places, self.x.names, strict=True)
            ),
            text((middle, self.foot + 32), self.x.label, "label", anchor="middle"),
        ]


def figure(caption: Caption, frame: Frame, parts: Iterable[Part]) -> Element:
    """Make a figure with a caption and a drawing of `parts`. The height of the drawing fits `frame`."""
    name, title, description = caption.name, caption.title, caption.description
    drawing = element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", description, id=f"{name}-description"),
        *parts,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {_n(frame.foot + 40)}", role="img",
        aria_labelledby=f"{name}-title {name}-description",
    )  # fmt: skip
    return element("figure", drawing, element("figcaption", element("b", title), " ", description), id=name)


def text(at: Point, content: str, kind: str, *, anchor: str = "start") -> Element:
    """Make a line of text. The point `at` is the start, middle or end of the text's base line, as `anchor` says."""
    return element("text", content, x=_n(at[0]), y=_n(at[1]), class_=kind, text_anchor=anchor)


def line(start: Point, end: Point, kind: str) -> Element:
    return element("line", x1=_n(start[0]), y1=_n(start[1]), x2=_n(end[0]), y2=_n(end[1]), class_=kind)


def upright(frame: Frame, value: float, kind: str) -> Element:
    """Draw a vertical line at a value of the x axis, over the height of the frame."""
    return line((frame.across(value), frame.top), (frame.across(value), frame.foot), kind)


def dot(at: Point, kind: str, tooltip: str) -> Element:
    """Draw a dot at the point `at`, with a tooltip."""
    return element("circle", element("title", tooltip), cx=_n(at[0]), cy=_n(at[1]), r="4", class_=f"dot {kind}")


def curve(points: Iterable[Point], kind: str) -> Element:
    """Draw straight lines that join `points` in the given order."""
    return element("polyline", points=" ".join(f"{_n(x)},{_n(y)}" for x, y in points), class_=f"curve {kind}")


def bar(start: Point, end: Point, kind: str, tooltip: str) -> Element:
    """Draw a rectangle between two opposite corners."""
    (left, right), (top, foot) = sorted((start[0], end[0])), sorted((start[1], end[1]))
    return element(
        "rect", element("title", tooltip), x=_n(left), y=_n(top), width=_n(right - left), height=_n(foot - top),
        class_=f"bar {kind}",
    )  # fmt: skip


def mark(index: int) -> str:
    """Return the style of dots and lines for the evaluation number `index`, counted from 0.

    After `MARKS` evaluations, the colours repeat with dashed lines.
    """
    turn, colour = divmod(index, MARKS)
    return f"mark-{colour} again" if turn % 2 else f"mark-{colour}"


def spread(places: Iterable[float], gap: float, *, within: tuple[float, float]) -> list[float]:
    """Return label positions that are at least `gap` apart and otherwise closest to `places` in least squares.

    If there is room, all labels are `within` the two bounds. Otherwise, the last labels are beyond the second bound.
    """
    from scipy.optimize import isotonic_regression  # The import takes a while, and only plots with labels need it.

    wanted = np.array(list(places))
    order, gaps = np.argsort(wanted, kind="stable"), gap * np.arange(len(wanted))
    low, high = within
    result = np.empty(len(wanted))
    # After subtraction of the gaps, positions in order must not decrease.
    result[order] = isotonic_regression(wanted[order] - gaps).x.clip(low, max(low, high - gaps[-1])) + gaps
    return [float(place) for place in result]


def short(names: Sequence[str], most: int) -> list[str]:
    """Shorten each name to at most `most` characters by leaving out a part in the middle.

    The left-out part begins at the place that keeps the largest number of names distinct.
    """

    def cut(name: str, beginning: int) -> str:
        return name if len(name) <= most else f"{name[:beginning]}…{name[len(name) - most + 1 + beginning :]}"

    even = most // 2
    cuts = [
        [cut(name, beginning) for name in names]
        for beginning in sorted(range(most), key=lambda beginning: abs(beginning - even))
    ]
    return max(cuts, key=lambda shown: len(set(shown)))  # The first of equal candidates wins.


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
