"""A self-contained HTML page about one or several evaluations, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, tostring

from training.evaluation.report.evaluated import Evaluated, check_evaluations
from training.evaluation.report.geometry import curve, geometry
from training.evaluation.report.markup import ABSENT, Part, element, megabytes, number, row, section, table
from training.evaluation.report.plots import Bar, bars
from training.evaluation.report.scores import retrieval, sts, transfer
from training.evaluation.report.sheet import DRAWING
from training.evaluation.report.svg import Caption

STYLES = (DRAWING, Path(__file__).with_name("style.css"))
"""Style sheets of a page: of its drawings, and of everything else."""


def render(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Return an HTML page about the first evaluation, compared with the remaining evaluations.

    Raises:
        ReportError: see `check_evaluations`.
    """
    judged = check_evaluations(evaluations)
    parts = [part for make in (sts, transfer, retrieval, geometry, curve, speed) if (part := make(judged)) is not None]
    others = f"Compared with: {', '.join(each.title for each in judged[1:])}" if judged[1:] else ""
    said = [element("p", text) for text in (_headline(judged[0]), others) if text]
    main = [subjects(judged), *parts, explanations(judged)]
    return document(f"{judged[0].name}: evaluation", [element("h1", judged[0].title), *said], main)


def document(title: str, header: Sequence[Part], main: Sequence[Part]) -> str:
    """Return a self-contained HTML page with the style sheets of reports."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", "\n".join(file.read_text(encoding="utf-8") for file in STYLES)),
    )
    body = element("body", element("header", *header), element("main", *main))
    # XML escapes attributes completely. Every element of the body has an end tag, so the XML is valid HTML too.
    content = tostring(body, encoding="unicode", short_empty_elements=False)
    return f'<!doctype html>\n<html lang="en">{tostring(head, encoding="unicode", method="html")}{content}</html>\n'


def _headline(judged: Evaluated) -> str:
    """Return a text with the main score of each section."""
    numbers = [("STS mean", judged.get("sts", "mean"), 2), ("transfer mean", judged.get("transfer", "mean"), 2)]
    numbers += [
        (f"{name} nDCG@10", judged.get("retrieval", name, "ndcg10"), 2) for name in judged.get("retrieval") or {}
    ]
    numbers.append(("texts per second", judged.get("speed", "texts_per_second"), 0))
    return " · ".join(f"{name} {number(value, digits)}" for name, value, digits in numbers if value is not None)


# Facts about the evaluated encoders, and explanations of the numbers.

FINGERPRINT = 12
"""Number of characters of a fingerprint in the report. They are enough to distinguish encoders."""

SUBJECT = {
    "source": "Source",
    "kind": "Kind",
    "objective": "Objective",
    "backbone": "Backbone",
    "pooling": "Pooling",
    "transform": "Transform",
    "dim": "Width of an embedding",
    "max_length": "Longest input, tokens",
    "engine": "Engine",
    "precision": "Precision",
    "device": "Device",
}


def subjects(judged: Sequence[Evaluated]) -> Element:
    """Make a table with a column for each evaluation and a row for each fact that an evaluation has."""
    rows = {title: [each.get("subject", name) for each in judged] for name, title in SUBJECT.items()}
    prints = [each.get("subject", "fingerprint") for each in judged]
    rows["Fingerprint"] = [None if each is None else str(each)[:FINGERPRINT] for each in prints]
    rows["Size"] = [megabytes(each.get("subject", "bytes")) for each in judged]
    rows["Environment"] = [_environment(each) for each in judged]
    rows["Judged"] = [each.get("created") for each in judged]
    commands = [each.get("command") for each in judged]
    filled = [
        row(title, *(ABSENT if fact is None else str(fact) for fact in facts))
        for title, facts in rows.items()
        if any(fact is not None for fact in facts)
    ]
    if any(commands):
        filled.append(row("Command", *(element("code", command) if command else ABSENT for command in commands)))
    return section("judged", "Evaluated encoders", table("Facts", ["Fact", *(each.name for each in judged)], [filled]))


def explanations(judged: Sequence[Evaluated]) -> Element:
    """Make the section that explains the numbers and lists the commands that reproduce them."""
    known = [str(command) for each in judged if (command := each.get("command"))]
    return section(
        "reading",
        "How to read this",
        element(
            "p",
            "An STS score is Spearman's rank correlation × 100 between the cosines and the human scores of all pairs "
            "of a task (“all”). The mean is over the seven tasks. Each task's score is first rounded to two decimals. ",
            "Scores depend on the seed: over 50 seeds, SimCSE on BERT-base reached 75.11 ± 0.84, and its paper reports "
            "76.25. A difference below about 1 point between single runs is therefore within the noise. ",
            "Lower alignment and lower uniformity are better. Read the two values together. ",
            "Times are valid only for the device named above.",
        ),
        *([element("p", "To repeat it:"), element("pre", element("code", "\n".join(known)))] if known else []),
    )


def _environment(judged: Evaluated) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in _flat(judged.get("environment") or {})) or None


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each fact that is not None, with nested groups flattened."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif value is not None:
            yield name.replace("_", " "), value


# The cost of an encoder: time and size, and the effect of lower precision on scores.


def speed(judged: Sequence[Evaluated]) -> Element | None:
    """Return the section with latency, throughput and a table of precisions, or None if nothing was measured."""
    timed = [each for each in judged if each.get("speed")]
    rounded = [each for each in judged if each.get("precisions")]
    if not timed and not rounded:
        return None
    return section(
        "speed",
        "Latency and size",
        _times(timed) if timed else None,
        _precisions(rounded) if rounded else None,
        element("div", _throughput(rounded), class_="figures"),
    )


def _times(judged: Sequence[Evaluated]) -> Element:
    rows = [
        row(
            each.name,
            number(each.get("speed", "latency_ms", "p50"), 1),
            number(each.get("speed", "latency_ms", "p95"), 1),
            number(each.get("speed", "texts_per_second"), 0),
            number(each.get("speed", "texts"), 0),
            number(each.get("speed", "seconds"), 1),
            megabytes(each.get("subject", "bytes")) or ABSENT,
            kind="own",
        )
        for each in judged
    ]
    head = ["Encoder", "Median, ms", "95th percentile, ms", "Texts/s", "Texts", "Seconds", "Size"]
    return table("Latency, throughput and size", head, [rows])


def _precisions(judged: Sequence[Evaluated]) -> Element:
    bodies = [
        [
            row(
                f"{each.name}, {precision}",
                number(found.get("sts_mean")),
                number(found.get("least_cosine"), 5),
                found.get("cosine_to") or ABSENT,
                number(found.get("texts_per_second"), 0),
                megabytes(found.get("bytes")) or ABSENT,
            )
            for precision, found in each.get("precisions").items()
        ]
        for each in judged
    ]
    head = ["Precision", "STS mean", "Least cosine", "To", "Texts/s", "Size"]
    return table("Precisions", head, bodies)


def _throughput(judged: Sequence[Evaluated]) -> Part:
    known = [
        Bar(precision if len(judged) == 1 else f"{precision}, {each.name}", found["texts_per_second"], each.mark)
        for each in judged
        for precision, found in each.get("precisions").items()
        if found.get("texts_per_second") is not None
    ]
    if not known:
        return None
    caption = Caption("throughput", "Throughput by precision.", "Texts embedded in a second. Bars begin at zero.")
    return bars(caption, "Texts per second", known, digits=0)
