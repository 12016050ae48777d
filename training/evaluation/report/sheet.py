"""Figures as an SVG file, for documents that show an image."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

from training.evaluation.report import svg
from training.evaluation.report.markup import element
from training.evaluation.report.svg import WIDTH

DRAWING = Path(__file__).with_name("drawing.css")
"""Style sheet of drawings, with colours for light and dark."""
COLUMNS = 2
MARGIN = 16
TITLE_HEIGHT = 20


def sheet(figures: Sequence[Element]) -> str:
    """Return an SVG file with the figures in rows of `COLUMNS`, each below its title.

    The descriptions of the figures are only for screen readers. The colours follow the reader's system, light or dark.
    The document that shows the file may not follow the system, so the file has its own background.
    """
    rows = [figures[first : first + COLUMNS] for first in range(0, len(figures), COLUMNS)]
    width = MARGIN + min(COLUMNS, len(figures)) * (WIDTH + MARGIN)
    top = float(MARGIN)
    parts: list[Element] = []
    for row in rows:
        for column, figure in enumerate(row):
            left = MARGIN + column * (WIDTH + MARGIN)
            parts += [svg.text((left, top + 12), title_of(figure), "title"), _placed(figure, left, top + TITLE_HEIGHT)]
        top += TITLE_HEIGHT + max(map(_height, row)) + MARGIN
    drawing = element(
        "svg",
        element("style", DRAWING.read_text(encoding="utf-8")),
        element("rect", width="100%", height="100%", class_="sheet"),
        *parts,
        xmlns="http://www.w3.org/2000/svg", width=f"{width}", height=f"{top:g}", viewBox=f"0 0 {width} {top:g}",
    )  # fmt: skip
    return f"{tostring(drawing, encoding='unicode')}\n"


def title_of(figure: Element) -> str:
    """Return the title of a figure, without its full stop."""
    return figure.findtext("svg/title", "").removesuffix(".")


def description_of(figure: Element) -> str:
    return figure.findtext("svg/desc", "")


def _placed(figure: Element, left: float, top: float) -> Element:
    drawing = deepcopy(figure[0])
    drawing.attrib |= {"x": f"{left:g}", "y": f"{top:g}", "width": f"{WIDTH}", "height": f"{_height(figure):g}"}
    return drawing


def _height(figure: Element) -> float:
    return float(figure[0].get("viewBox", "").split()[3])
