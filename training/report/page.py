"""Evaluations, one or several side by side, as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, tostring

from training.report.curve import curve
from training.report.facts import reading, subjects
from training.report.geometry import geometry
from training.report.judged import Judged, judge
from training.report.markup import element, number
from training.report.scores import retrieval, sts, transfer
from training.report.speed import speed

STYLE = Path(__file__).with_name("style.css")
SECTIONS = (sts, transfer, retrieval, geometry, curve, speed)
"""Functions that make a section of the page, or None without data."""


def render(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Write one HTML file with the first evaluation as the subject and the others beside it.

    Raises:
        ReportError: there is no evaluation, or one has an unsupported format.
    """
    judged = judge(evaluations)
    parts = [part for make in SECTIONS if (part := make(judged)) is not None]
    head = tostring(_head(judged), encoding="unicode", method="html")
    # XML escapes attributes completely. Every element of the body has an end tag, so the XML is valid HTML too.
    body = tostring(_body(judged, parts), encoding="unicode", short_empty_elements=False)
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def _head(judged: Sequence[Judged]) -> Element:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{judged[0].name}: evaluation"),
        element("style", STYLE.read_text(encoding="utf-8")),
    )


def _body(judged: Sequence[Judged], parts: Sequence[Element]) -> Element:
    header = element(
        "header",
        element("h1", judged[0].title),
        *(element("p", said) for said in (_headline(judged[0]), _others(judged[1:])) if said),
    )
    return element("body", header, element("main", subjects(judged), *parts, reading(judged)))


def _headline(judged: Judged) -> str:
    """Return the main number of each section."""
    numbers = [("STS mean", judged.get("sts", "mean"), 2), ("transfer mean", judged.get("transfer", "mean"), 2)]
    numbers += [
        (f"{name} nDCG@10", judged.get("retrieval", name, "ndcg10"), 2) for name in judged.get("retrieval") or {}
    ]
    numbers.append(("texts per second", judged.get("speed", "texts_per_second"), 0))
    return " · ".join(f"{name} {number(value, digits)}" for name, value, digits in numbers if value is not None)


def _others(judged: Sequence[Judged]) -> str:
    return f"Beside it: {', '.join(each.title for each in judged)}" if judged else ""
