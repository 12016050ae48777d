"""Tests of the style sheet of all pages."""

from __future__ import annotations

import re

from training.evaluation.report import svg
from training.evaluation.report.sheet import DRAWING


def test_text_can_be_read_in_both_themes() -> None:
    """Check a contrast of 4.5 or more, as WCAG 2.2 requires in criterion 1.4.3."""
    themes = re.findall(r":root \{(.*?)\}", DRAWING.read_text(encoding="utf-8"), re.DOTALL)
    assert len(themes) == 2
    for theme in themes:
        colours = dict(re.findall(r"--([\w-]+): (#\w{6});", theme))
        for name in ("ink", "faint", "mark-0", "mark-1", "mark-2", "mark-3"):
            assert contrast(colours[name], colours["paper"]) >= 4.5


def test_curves_of_a_colour_that_comes_again_are_dashed() -> None:
    _, kind = svg.mark(svg.MARKS).split()
    (rule,) = re.findall(rf"\.curve\.{kind} \{{(.*?)\}}", DRAWING.read_text(encoding="utf-8"))
    assert "stroke-dasharray" in rule


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
