"""A study as one page that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element, tostring

from training.report import markup
from training.report.markup import element, section
from training.report.page import STYLE
from training.study import geometry
from training.study.figures import figures
from training.study.summary import Summary
from training.study.table import explanation, grid


def page(name: str, about: str, *summaries: Summary) -> str:
    """One HTML file: a table for each summary, then the figures; what a metric does not have is the first's."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{name}: study"),
        element("style", STYLE.read_text(encoding="utf-8")),
    )
    body = element(
        "body",
        element("header", element("h1", name), element("p", about) if about else None),
        element(
            "main",
            *(_result(summary) for summary in summaries),
            _geometry(summaries[0]),
            section("figures", "Figures", element("div", *figures(*summaries), class_="figures")),
        ),
    )
    made = element("html", head, body, lang="en")
    return f"<!doctype html>\n{tostring(made, encoding='unicode', method='html')}\n"


def _result(summary: Summary) -> Element:
    head, *lines = grid(summary)
    rows = [_row(line, own=row.label == summary.against) for line, row in zip(lines, summary.rows, strict=True)]
    columns = [name[0].upper() + name[1:] for name in head]
    drawn = markup.table(f"Every arm against {summary.against}, {summary.metric.unit}", columns, [rows])
    return section(summary.metric.name, summary.metric.title, drawn, element("p", explanation(summary)))


def _geometry(summary: Summary) -> Element | None:
    if not (lines := geometry.grid(summary)):
        return None
    head, *arms = ([cell.replace("-", "−") if i else cell for i, cell in enumerate(line)] for line in lines)
    drawn = markup.table(
        "Of the vectors", [name[0].upper() + name[1:] for name in head], [[markup.row(*arm) for arm in arms]]
    )
    return section("geometry", "How the vectors lie", drawn, element("p", geometry.EXPLANATION))


def _row(line: Sequence[str], *, own: bool) -> Element:
    label, *numbers, verdict = line
    return markup.row(label, *(cell.replace("-", "−") for cell in numbers), verdict, kind="own" if own else "")
