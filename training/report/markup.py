"""HTML and SVG as elements: what they say is escaped where it is written, so no text can become markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

ABSENT = "–"

Part = Element | str | None
"""What may stand inside an element; None is left out."""


def element(tag: str, *parts: Part, **attributes: str) -> Element:
    """An element. Attributes as Python spells them: `class_`, `aria_label`."""
    made = Element(tag, {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()})
    for part in parts:
        if isinstance(part, str):
            _say(made, part)
        elif part is not None:
            made.append(part)
    return made


def table(caption: str, head: Sequence[str], bodies: Iterable[Iterable[Element]]) -> Element:
    """A table that scrolls by itself where the page is narrower; each body is a group of rows."""
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", element("tr", *(element("th", name, scope="col") for name in head))),
            *(element("tbody", *rows) for rows in bodies),
        ),
        class_="scrolls",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def row(name: Part, *cells: Part, kind: str = "") -> Element:
    """A row of a table under the name that its first cell says."""
    attributes = {"class_": kind} if kind else {}
    return element("tr", element("th", name, scope="row"), *(element("td", cell) for cell in cells), **attributes)


def details(summary: str, *parts: Part) -> Element:
    """What is there for those who ask."""
    return element("details", element("summary", summary), *parts)


def section(name: str, title: str, *parts: Part) -> Element:
    """A part of the page under its heading; `name` is its anchor."""
    heading = element("h2", title, id=f"{name}-heading")
    return element("section", heading, *parts, id=name, aria_labelledby=f"{name}-heading")


def number(value: float | None, digits: int = 2) -> str:
    """With a true minus and thousands apart; a dash for what was not measured."""
    if value is None:
        return ABSENT
    rounded = round(value, digits) + 0.0  # no minus before a 0
    return f"{rounded:,.{digits}f}".replace(",", "\u202f").replace("-", "−")


def megabytes(size: int | None) -> str | None:
    """Of bytes, in units of 10^6."""
    return None if size is None else f"{number(size / 1e6, 1)} MB"


def _say(made: Element, text: str) -> None:
    if len(made):
        made[-1].tail = (made[-1].tail or "") + text
    else:
        made.text = (made.text or "") + text
