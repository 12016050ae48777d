"""Plots of a report: dot plots, lines, bars from zero, and points in a plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from training.evaluation.report import svg
from training.evaluation.report.markup import number
from training.evaluation.report.svg import UNMARKED, WIDTH, Axis, Caption, Frame, Point, linear

LABEL_GAP = 13
"""Minimum distance between the base lines of labels, in units of the drawing."""
NAME_LENGTH = 14


@dataclass(frozen=True)
class Dot:
    """A value in its own row of a dot plot."""

    name: str
    value: float
    kind: str
    deviation: float | None = None


@dataclass(frozen=True)
class Bar:
    """A value that is drawn as a bar from zero."""

    name: str
    value: float
    kind: str
    interval: tuple[float, float] | None = None
    reported: float | None = None
    """Value of the same quantity in a paper."""


@dataclass(frozen=True)
class Series:
    """Points (x, y) in the order of x, with a name and a style."""

    name: str
    kind: str
    points: Sequence[Point]


Extra = Callable[[Frame], Sequence[Element]]
"""Type of a function that draws further elements of a plot."""


@dataclass(frozen=True)
class Plane:
    """The axes of a plot, and the function `extra`, which draws further elements in the plot."""

    x: Axis
    y: Axis
    extra: Extra = field(default=lambda _frame: ())


def dot_plot(caption: Caption, label: str, dots: Sequence[Dot]) -> Element:
    """Draw a row for each dot, with its value. A deviation is drawn as a line to both sides of the dot."""
    reach = [dot.value + sign * (dot.deviation or 0) for dot in dots for sign in (-1, 1)]
    height = 18 * len(dots)
    frame = Frame(linear(label, reach), UNMARKED, left=150, right=40, height=height)
    parts = [svg.upright(frame, tick, "grid") for tick in frame.x.ticks]
    names = svg.short([dot.name for dot in dots], 23)
    for i, (dot, name) in enumerate(zip(dots, names, strict=True)):
        y = frame.top + 18 * i + 9
        tooltip = f"{dot.name}: {number(dot.value)}" + (f" ± {number(dot.deviation)}" if dot.deviation else "")
        parts.append(svg.text((frame.left - 10, y + 4), name, f"name {dot.kind}", anchor="end"))
        if dot.deviation:
            ends = (dot.value - dot.deviation, dot.value + dot.deviation)
            parts.append(svg.line((frame.across(ends[0]), y), (frame.across(ends[1]), y), f"spread {dot.kind}"))
        parts.append(svg.dot((frame.across(dot.value), y), dot.kind, tooltip))
        parts.append(svg.text((WIDTH, y + 4), number(dot.value), f"value {dot.kind}", anchor="end"))
    return svg.figure(caption, frame, [*parts, *frame.below()])


def bars(caption: Caption, label: str, values: Sequence[Bar], *, digits: int) -> Element:
    """Draw horizontal bars from zero with their values, intervals (as whiskers) and a paper's values (as circles)."""
    reach = [end for bar in values for end in (bar.value, bar.reported or 0.0, *(bar.interval or ()))]
    frame = Frame(linear(label, reach, from_zero=True), UNMARKED, left=150, right=56, height=24 * len(values))
    parts = [svg.upright(frame, tick, "grid") for tick in frame.x.ticks]
    zero = frame.across(0)
    names = svg.short([bar.name for bar in values], 23)
    for i, (bar, name) in enumerate(zip(values, names, strict=True)):
        y = frame.top + 24 * i + 12
        said = number(bar.value, digits)
        tooltip = f"{bar.name}: {said}"
        if bar.interval:
            tooltip += f", {number(bar.interval[0], digits)} to {number(bar.interval[1], digits)}"
        parts.append(svg.text((frame.left - 10, y + 4), name, f"name {bar.kind}", anchor="end"))
        kind = f"{bar.kind} pale" if bar.interval else bar.kind
        parts.append(svg.bar((zero, y - 7), (frame.across(bar.value), y + 7), kind, tooltip))
        if bar.interval:
            low, high = map(frame.across, bar.interval)
            parts.append(svg.line((low, y), (high, y), "whisker"))
            parts += [svg.line((x, y - 4), (x, y + 4), "whisker") for x in (low, high)]
        if bar.reported is not None:
            tip = f"{bar.name}, in the paper: {number(bar.reported, digits)}"
            parts.append(svg.dot((frame.across(bar.reported), y), "reported", tip))
        parts.append(svg.text((WIDTH, y + 4), said, f"value {bar.kind}", anchor="end"))
    parts.append(svg.upright(frame, 0, "axis"))
    return svg.figure(caption, frame, [*parts, *frame.below()])


def lines(caption: Caption, plane: Plane, series: Sequence[Series], *, dots: bool = False) -> Element:
    """Draw a line for each series. If there are several lines, the name of each is at the end of the line."""
    named = len(series) > 1
    frame = Frame(plane.x, plane.y, left=56, right=100 if named else 16)
    parts = [*frame.axes(), *plane.extra(frame)]
    for each in series:
        places = [(frame.across(x), frame.up(y)) for x, y in each.points]
        parts.append(svg.curve(places, each.kind))
        if dots:
            tips = (f"{each.name}: {number(y, 4)} at {x:g}" for x, y in each.points)
            parts += [svg.dot(place, each.kind, tip) for place, tip in zip(places, tips, strict=True)]
    if named:
        names = svg.short([each.name for each in series], NAME_LENGTH)
        ends = svg.spread([frame.up(each.points[-1][1]) for each in series], LABEL_GAP, within=(frame.top, frame.foot))
        parts += [
            svg.text((WIDTH - frame.right + 8, y + 4), name, f"name {each.kind}")
            for each, name, y in zip(series, names, ends, strict=True)
        ]
    return svg.figure(caption, frame, parts)


def points(caption: Caption, plane: Plane, named: Sequence[Series]) -> Element:
    """Draw a labelled dot for each series. Every series must have exactly one point."""
    frame = Frame(plane.x, plane.y, left=56, right=100, height=200)
    places = [(frame.across(x), frame.up(y)) for each in named for x, y in each.points]
    heights = svg.spread([y for _, y in places], LABEL_GAP, within=(frame.top, frame.foot))
    parts = [*frame.axes(), *plane.extra(frame)]
    names = svg.short([each.name for each in named], NAME_LENGTH)
    for each, name, place, height in zip(named, names, places, heights, strict=True):
        (x, y), *_ = each.points
        parts.append(svg.dot(place, each.kind, f"{each.name}: {number(x, 3)}, {number(y, 3)}"))
        parts.append(svg.text((place[0] + 9, height + 4), name, f"name {each.kind}"))
    return svg.figure(caption, frame, parts)


def histogram(caption: Caption, plane: Plane, edges: Sequence[float], shares: Series) -> Element:
    """Draw bars from zero between neighbouring edges. The y values of `shares` are the heights."""
    frame = Frame(plane.x, plane.y, left=56)
    parts = [*frame.axes(), *plane.extra(frame)]
    for left, right, (_, share) in zip(edges[:-1], edges[1:], shares.points, strict=True):
        corners = (frame.across(left), frame.foot), (frame.across(right), frame.up(share))
        parts.append(svg.bar(*corners, shares.kind, f"{number(left)} to {number(right)}: {number(100 * share)} %"))
    return svg.figure(caption, frame, parts)
