"""Facts about the evaluated encoders, and explanations of the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from training.report.judged import Judged
from training.report.markup import ABSENT, Part, element, megabytes, row, section, table

FINGERPRINT = 12
"""Characters of a fingerprint that suffice to distinguish encoders."""

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


def subjects(judged: Sequence[Judged]) -> Element:
    """Make one column for each evaluation, and one row for each fact that any of them has."""
    rows = {title: [_said(each.get("subject", name)) for each in judged] for name, title in SUBJECT.items()}
    rows["Fingerprint"] = [_fingerprint(each) for each in judged]
    rows["Size"] = [megabytes(each.get("subject", "bytes")) for each in judged]
    rows["Environment"] = [_environment(each) for each in judged]
    rows["Judged"] = [_said(each.get("created")) for each in judged]
    commands = [each.get("command") for each in judged]
    filled = [
        row(title, *(ABSENT if said is None else said for said in facts))
        for title, facts in rows.items()
        if any(said is not None for said in facts)
    ]
    if any(commands):
        filled.append(row("Command", *(element("code", command) if command else ABSENT for command in commands)))
    return section("judged", "What was judged", table("Facts", ["Fact", *(each.name for each in judged)], [filled]))


def reading(judged: Sequence[Judged]) -> Element:
    """Explain the numbers, and list the commands that reproduce them."""
    return section(
        "reading",
        "How to read this",
        element(
            "p",
            "STS scores are Spearman's rank correlation times 100 between cosines and people's scores, over all pairs "
            "of a task at once (“all”); the mean is that of the seven tasks, each rounded to two decimals first. ",
            "One training run is one draw: SimCSE on BERT-base came to 75.11 ± 0.84 over 50 seeds where its paper says "
            "76.25, so a difference below about 1 point between single runs is inside the noise. ",
            "Alignment and uniformity are better the lower they are, and neither says much without the other. ",
            "Times hold for the device named above and for no other.",
        ),
        *_commands(judged),
    )


def _commands(judged: Sequence[Judged]) -> list[Part]:
    known = [str(command) for each in judged if (command := each.get("command"))]
    if not known:
        return []
    return [element("p", "To repeat it:"), element("pre", element("code", "\n".join(known)))]


def _said(value: object) -> str | None:
    return None if value is None else str(value)


def _fingerprint(judged: Judged) -> str | None:
    fingerprint = judged.get("subject", "fingerprint")
    return None if fingerprint is None else str(fingerprint)[:FINGERPRINT]


def _environment(judged: Judged) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in _flat(judged.get("environment") or {})) or None


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the known facts, with nested groups flattened."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif value is not None:
            yield name.replace("_", " "), value
