"""The evaluations of a report, checked and named."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.report.svg import mark

FORMAT = 1
SECTIONS = ("environment", "sts", "transfer", "retrieval", "geometry", "speed", "precisions")


class ReportError(ValueError):
    """An evaluation that can't be shown; the message says which one and what is wrong with it."""


@dataclass(frozen=True)
class Judged:
    """An encoder and what was measured of it."""

    name: str
    """Unique in the report."""
    mark: str
    """Of its dots and lines."""
    values: Mapping[str, Any]

    def get(self, *path: str) -> Any:
        """What the evaluation says under a path of names; None where it says nothing."""
        found: Any = self.values
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    @property
    def title(self) -> str:
        """Its name and what it was made from."""
        backbone, objective = self.get("subject", "backbone"), self.get("subject", "objective")
        made = [part for part in (objective, backbone if backbone != self.name else None) if part]
        return f"{self.name} ({' on '.join(made)})" if made else self.name


def judge(evaluations: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """The evaluations in their order; equal names get a number.

    Raises:
        ReportError: there are none, or one is of another format or has a section of another shape.
    """
    if not evaluations:
        raise ReportError("no evaluation to report")
    for place, evaluation in enumerate(evaluations, start=1):
        _check(evaluation, f"evaluation {place}")
    names = [str(each["subject"].get("name") or each["subject"].get("source") or "unnamed") for each in evaluations]
    count, seen, judged = Counter(names), Counter[str](), []
    for i, (name, evaluation) in enumerate(zip(names, evaluations, strict=True)):
        seen[name] += 1
        unique = name if count[name] == 1 else f"{name} #{seen[name]}"
        judged.append(Judged(unique, mark(i), evaluation))
    return judged


def _check(evaluation: Mapping[str, Any], where: str) -> None:
    if evaluation.get("format") != FORMAT:
        raise ReportError(f"{where}: format {evaluation.get('format')!r}, this report reads format {FORMAT}")
    if not isinstance(evaluation.get("subject"), Mapping):
        raise ReportError(f"{where}: no subject")
    for section in SECTIONS:
        if not isinstance(evaluation.get(section, {}), Mapping | None):
            raise ReportError(f"{where}: {section} is not an object")
    if not isinstance(evaluation.get("curve", []), list | None):
        raise ReportError(f"{where}: curve is not a list")
    for path, value in _numbers(evaluation, where):
        if not math.isfinite(value):
            raise ReportError(f"{path} is {value}, not a number that can be shown")
    histogram = Judged("", "", evaluation).get("geometry", "cosine_histogram") or {"edges": [0], "share": []}
    if len(histogram["edges"]) != len(histogram["share"]) + 1:
        raise ReportError(f"{where}: geometry cosine_histogram needs one edge more than it has shares")


def _numbers(value: object, path: str) -> Iterator[tuple[str, float]]:
    """Every number, with the names that lead to it."""
    if isinstance(value, float | int):
        yield path, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _numbers(each, f"{path} {name}")
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from _numbers(each, f"{path}[{i}]")
