"""Elements of HTML and SVG. Text is escaped on output, so no text can become markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

ABSENT = "–"

Part = Element | str | None
"""Content of an element. None is left out."""


def element(tag: str, *parts: Part, **attributes: str) -> Element:
    """Make an element. Attributes have Python spelling: `class_`, `aria_label`."""
    made = Element(tag, {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()})
    for part in parts:
        if isinstance(part, str) and len(made):
            made[-1].tail = (made[-1].tail or "") + part
        elif isinstance(part, str):
            made.text = (made.text or "") + part
        elif part is not None:
            made.append(part)
    return made


def table(caption: str, head: Sequence[str], bodies: Iterable[Iterable[Element]]) -> Element:
    """Make a table. A table that is wider than the page scrolls. Each body is a group of rows."""
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
    """Make a row of a table with `name` in the first cell."""
    attributes = {"class_": kind} if kind else {}
    return element("tr", element("th", name, scope="row"), *(element("td", cell) for cell in cells), **attributes)


def details(summary: str, *parts: Part) -> Element:
    """Make a collapsible part of the page."""
    return element("details", element("summary", summary), *parts)


def section(name: str, title: str, *parts: Part) -> Element:
    """Make a section with a heading. `name` is the section's anchor."""
    heading = element("h2", title, id=f"{name}-heading")
    return element("section", heading, *parts, id=name, aria_labelledby=f"{name}-heading")


def number(value: float | None, digits: int = 2) -> str:
    """Format a number with a true minus sign (U+2212) and narrow spaces between thousands. None becomes a dash."""
    if value is None:
        return ABSENT
    rounded = round(value, digits) + 0.0  # Adding 0.0 turns -0.0 into 0.0.
    return f"{rounded:,.{digits}f}".replace(",", "\u202f").replace("-", "−")


def megabytes(size: int | None) -> str | None:
    """Format a number of bytes in units of 10^6 bytes. None stays None."""
    return None if size is None else f"{number(size / 1e6, 1)} MB"
