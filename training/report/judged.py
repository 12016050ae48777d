"""The evaluations of a report, checked and named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from models.errors import Refused
from training.report.shape import EVALUATION, misshapen, unshowable
from training.report.svg import mark

FORMAT = 1


class ReportError(Refused):
    """An evaluation can't be shown. The message says which one and why."""


@dataclass(frozen=True)
class Judged:
    """An encoder with its evaluation."""

    name: str
    """Name that is unique in the report."""
    mark: str
    """Style of its dots and lines."""
    values: Mapping[str, Any]

    def get(self, *path: str) -> Any:
        """Return the value under a path of names, or None."""
        found: Any = self.values
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    @property
    def title(self) -> str:
        """Return the name, with objective and backbone."""
        backbone, objective = self.get("subject", "backbone"), self.get("subject", "objective")
        made = [part for part in (objective, backbone if backbone != self.name else None) if part]
        return f"{self.name} ({' on '.join(made)})" if made else self.name


def judge(evaluations: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """Check the evaluations and give them unique names, in order.

    Equal names get a number.

    Raises:
        ReportError: there are none, or one is of another format, or a part of it is of another shape.
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


def _check(evaluation: object, where: str) -> None:
    if not isinstance(evaluation, Mapping):
        raise ReportError(f"{where}: not an object")
    if evaluation.get("format") != FORMAT:
        raise ReportError(f"{where}: format {str(evaluation.get('format'))[:30]}, this report reads format {FORMAT}")
    if evaluation.get("subject") is None:
        raise ReportError(f"{where}: no subject")
    for complaint in chain(unshowable(evaluation, where), misshapen(evaluation, EVALUATION, where)):
        raise ReportError(complaint)
    shape = Judged("", "", evaluation).get("geometry") or {}
    histogram = shape.get("cosine_histogram") or {"edges": [0], "share": []}
    if len(histogram["edges"]) != len(histogram["share"]) + 1:
        raise ReportError(f"{where} geometry cosine_histogram needs one edge more than it has shares")
    spectrum = list((shape.get("spectrum_centred") or {}).get("values") or [1.0])
    # A largest share below an equal share is impossible, and would break the logarithmic axis.
    if sorted(spectrum, reverse=True) != spectrum or spectrum[-1] < 0 or spectrum[0] * len(spectrum) < 0.99:
        raise ReportError(f"{where} geometry spectrum_centred values are no shares of their sum, largest first")
