"""Tests of figures in an SVG file."""

from __future__ import annotations

from xml.etree import ElementTree

from training.evaluation.report.plots import Bar, bars
from training.evaluation.report.sheet import COLUMNS, sheet
from training.evaluation.report.svg import WIDTH, Caption


def test_figures_lie_in_rows_below_their_titles_and_do_not_overlap() -> None:
    counts = (1, 5, 2)
    figures = [
        bars(
            Caption(f"f{count}", f"{count} <arms>.", "Bars."),
            "Gain",
            [Bar(f"a{i}", i, "mark-0", (i - 1, i + 1), 2.5) for i in range(count)],
            digits=2,
        )
        for count in counts
    ]
    root = ElementTree.fromstring(sheet(figures))
    width, height = (float(root.get(name, "")) for name in ("width", "height"))
    assert root.get("viewBox") == f"0 0 {width:g} {height:g}"
    titles = root.findall("{*}text")
    assert [title.text for title in titles] == [f"{count} <arms>" for count in counts]
    boxes = [
        tuple(float(each.get(name, "")) for name in ("x", "y", "width", "height")) for each in root.findall("{*}svg")
    ]
    for (x, y, w, h), title in zip(boxes, titles, strict=True):
        assert x + w <= width and y + h <= height and w == WIDTH
        assert float(title.get("x", "")) == x and y - 12 < float(title.get("y", "")) < y
    assert [y for _, y, _, _ in boxes] == [boxes[0][1]] * COLUMNS + [boxes[2][1]]
    assert boxes[2][1] > boxes[1][1] + boxes[1][3] and boxes[1][0] > boxes[0][0] + WIDTH


def test_a_file_has_colours_for_light_and_dark_and_loads_nothing() -> None:
    text = sheet([bars(Caption("a", "A.", "Bars."), "Gain", [Bar("a", 1.0, "mark-0")], digits=2)])
    assert text.count("prefers-color-scheme: dark") == 1
    assert "url(" not in text and "href" not in text and text.count("http") == text.count("http://www.w3.org/2000/svg")
