"""A study as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element, tostring

from training.report import markup
from training.report.markup import element, section
from training.report.page import STYLE
from training.study import geometry, tasks
from training.study.figures import figures
from training.study.summary import Summary
from training.study.table import explanation, grid


def page(name: str, about: str, *summaries: Summary) -> str:
    """Write one HTML file with a table for each summary, then the figures.

    Parts that do not depend on a metric come from the first summary.
    """
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
            *(part for summary in summaries for part in (_result(summary), _tasks(summary))),
            _plain("geometry", "How the vectors lie", geometry.geometry_grid(summaries[0]), geometry.EXPLANATION),
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


def _tasks(summary: Summary) -> Element | None:
    return _plain(
        f"{summary.metric.name}-tasks", "Task by task", tasks.task_grid(summary), tasks.task_explanation(summary)
    )


def _plain(name: str, title: str, lines: Sequence[Sequence[str]], said: str) -> Element | None:
    """Make a table of numbers without verdicts, or nothing without lines."""
    if not lines:
        return None
    head, *arms = ([cell.replace("-", "−") if i else cell for i, cell in enumerate(line)] for line in lines)
    columns = [column[0].upper() + column[1:] for column in head]
    return section(name, title, markup.table(title, columns, [[markup.row(*arm) for arm in arms]]), element("p", said))


def _row(line: Sequence[str], *, own: bool) -> Element:
    label, *numbers, verdict = line
    return markup.row(label, *(cell.replace("-", "−") for cell in numbers), verdict, kind="own" if own else "")
