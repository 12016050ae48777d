"""A study as one page that needs nothing beside it."""

from __future__ import annotations

from xml.etree.ElementTree import Element, tostring

from training.report import markup
from training.report.markup import element, section
from training.report.page import STYLE
from training.study.figures import figures
from training.study.summary import Row, Summary, cells, explanation


def page(name: str, about: str, summary: Summary) -> str:
    """One HTML file: the table, then the figures."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{name}: study"),
        element("style", STYLE.read_text(encoding="utf-8")),
    )
    drawn = element("div", *figures(summary), class_="figures")
    body = element(
        "body",
        element("header", element("h1", name), element("p", about) if about else None),
        element(
            "main",
            section("result", "Result", _table(summary), element("p", explanation(summary))),
            section("figures", "Figures", drawn),
        ),
    )
    made = element("html", head, body, lang="en")
    return f"<!doctype html>\n{tostring(made, encoding='unicode', method='html')}\n"


def _table(summary: Summary) -> Element:
    columns = (
        "Arm",
        "Seeds",
        summary.title,
        "STS-B dev",
        "Gain",
        "95 % interval",
        "P(better)",
        "Verdict",
    )
    caption = f"Every arm against {summary.against}"
    return markup.table(caption, columns, [[_row(row, summary) for row in summary.rows]])


def _row(row: Row, summary: Summary) -> Element:
    label, *others = (cell.replace("-", "−") if i > 3 else cell for i, cell in enumerate(cells(row)[:-1]))
    return markup.row(label, *others, row.verdict, kind="own" if row.label == summary.against else "")
