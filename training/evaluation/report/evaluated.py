"""Evaluations in a report, with unique names and with checks of their format.

A report can be made from files of unknown origin, so the types of all parts that the page reads are checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from models.errors import Refused
from training.evaluation.report.svg import mark

FORMAT = 1
"""Format of evaluations, and of the reports of bundles."""


class ReportError(Refused):
    """There are no evaluations, or an evaluation can't be shown in a report.

    The message contains the reason, and the number of the evaluation that can't be shown.
    """


@dataclass(frozen=True)
class Evaluated:
    """An evaluation of an encoder, with its name and style in the report."""

    name: str
    """Name that is unique in the report."""
    mark: str
    """Style of the evaluation's dots and lines in plots."""
    values: Mapping[str, Any]

    def get(self, *path: str) -> Any:
        """Return the value at a path of nested names in the evaluation, or None if there is no value."""
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


def check_evaluations(evaluations: Sequence[Mapping[str, Any]]) -> list[Evaluated]:
    """Check the evaluations, and return them in the same order with unique names.

    Equal names are numbered.

    Raises:
        ReportError: there are no evaluations; an evaluation has an unsupported format or no subject; or a part of an
            evaluation has a wrong type or a value that a page can't show.
    """
    if not evaluations:
        raise ReportError("no evaluation to report")
    for place, evaluation in enumerate(evaluations, start=1):
        _check(evaluation, f"evaluation {place}")
    names = [str(each["subject"].get("name") or each["subject"].get("source") or "unnamed") for each in evaluations]
    unique = [
        name if names.count(name) == 1 else f"{name} #{names[: i + 1].count(name)}" for i, name in enumerate(names)
    ]
    return [Evaluated(name, mark(i), each) for i, (name, each) in enumerate(zip(unique, evaluations, strict=True))]


def _check(evaluation: object, where: str) -> None:
    if not isinstance(evaluation, Mapping):
        raise ReportError(f"{where}: not an object")
    if evaluation.get("format") != FORMAT:
        raise ReportError(
            f"{where}: has format {str(evaluation.get('format'))[:30]}, but only format {FORMAT} is supported"
        )
    if evaluation.get("subject") is None:
        raise ReportError(f"{where}: no subject")
    for complaint in chain(display_errors(evaluation, where), shape_errors(evaluation, EVALUATION, where)):
        raise ReportError(complaint)
    shape = Evaluated("", "", evaluation).get("geometry") or {}
    histogram = shape.get("cosine_histogram") or {"edges": [0], "share": []}
    if len(histogram["edges"]) != len(histogram["share"]) + 1:
        raise ReportError(f"{where} geometry cosine_histogram needs one more edge than shares")
    spectrum = list((shape.get("spectrum_centred") or {}).get("values") or [1.0])
    # A share above an earlier one is impossible in a valid file, and would break the logarithmic axis.
    if sorted(spectrum, reverse=True) != spectrum or spectrum[-1] < 0 or spectrum[0] * len(spectrum) < 0.99:
        raise ReportError(f"{where} geometry spectrum_centred values must be shares of their sum in descending order")


# The expected shape of an evaluation: the parts that the page reads, with their types.

MAX_NUMBER = 1e15
"""Upper bound of all numbers in a report. Measurements are far below it, and sums of allowed numbers stay finite."""
MAX_DEPTH = 16
"""Maximum depth of nested objects and lists."""
SIZE = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


NUMBER, TEXT, FACT = "a number", "text", "text or a number"
"""Shapes of single values, as error messages name them."""
REQUIRED = frozenset(("c", "test", "edges", "share"))
"""Names of required fields, in every shape that has these fields. All other fields may be missing or null."""


@dataclass(frozen=True)
class Listed:
    """Shape of a list whose values all have one shape.

    In an evaluation that was not read from JSON, the list may be a tuple.
    """

    of: Shape


@dataclass(frozen=True)
class Each:
    """Shape of an object with arbitrary field names. The values of all fields have the same shape."""

    of: Shape
    sized: bool = False
    """True if the names of the fields must be whole numbers from 1."""


Shape = str | Listed | Each | Mapping[str, "Shape"]
"""Shape of a value. A mapping has the shapes of an object's known fields. Unknown fields are allowed."""


def _all(kind: str, names: str) -> dict[str, Shape]:
    return dict.fromkeys(names.split(), kind)


_AGGREGATES = _all(NUMBER, "all mean wmean")
_STS: dict[str, Shape] = {
    "spearman": _AGGREGATES,
    "pearson": _AGGREGATES,
    "pairs": NUMBER,
    "subsets": Each(_all(NUMBER, "spearman pearson pairs")),
}
_TRANSFER: dict[str, Shape] = {**_all(NUMBER, "accuracy f1 dev_accuracy"), "folds": Listed(_all(NUMBER, "c test"))}
_GEOMETRY: dict[str, Shape] = {
    **_all(NUMBER, "sentences alignment alignment_at_least_4 uniformity random_cosine_mean random_cosine_sd"),
    **_all(NUMBER, "correlation_rank correlation_rank_of_64"),
    "sentences_of": TEXT,
    "spectrum": {"effective_rank": NUMBER},
    "spectrum_centred": {"effective_rank": NUMBER, "values": Listed(NUMBER)},
    "cosine_histogram": {"edges": Listed(NUMBER), "share": Listed(NUMBER)},
    "top4_cosine": Each(NUMBER, sized=True),
    "nearest_cosines": Each(Listed(NUMBER), sized=True),
}
_SUBJECT: dict[str, Shape] = {
    **_all(FACT, "source kind name pooling transform dim max_length engine precision device fingerprint"),
    **_all(TEXT, "objective backbone"),
    "bytes": NUMBER,
}
_CURVE = _all(
    NUMBER,
    "step stsb_dev_spearman sickr_dev_spearman sts_dev_spearman dev_spearman known_item_ndcg10 self_retrieval_mrr10 "
    "uniformity alignment effective_rank removed_share",
)
EVALUATION: Shape = {
    "command": TEXT,
    "created": TEXT,
    "subject": _SUBJECT,
    "environment": {},
    "sts": {"tasks": Each(_STS), "mean": NUMBER},
    "transfer": {"tasks": Each(_TRANSFER), "mean": NUMBER},
    "retrieval": Each({**_all(NUMBER, "ndcg10 mrr10 recall100 queries documents missing"), "through": TEXT}),
    "geometry": _GEOMETRY,
    "curve": Listed(_CURVE),
    "best_step": NUMBER,
    "speed": {**_all(NUMBER, "texts seconds texts_per_second"), "latency_ms": _all(NUMBER, "p50 p95")},
    "precisions": Each({**_all(NUMBER, "sts_mean least_cosine texts_per_second bytes"), "cosine_to": TEXT}),
}


def shape_errors(value: object, shape: Shape, path: str) -> Iterator[str]:
    """Yield a line for each value of the wrong shape. The line begins with the path to the value."""
    if isinstance(shape, str):
        number, text = isinstance(value, float | int) and not isinstance(value, bool), isinstance(value, str)
        if not {NUMBER: number, TEXT: text, FACT: text or number}[shape]:
            yield f"{path} is not {shape}"
    elif isinstance(shape, Listed):
        if not isinstance(value, list | tuple):
            yield f"{path} is not a list"
            return
        for i, each in enumerate(value):
            yield from shape_errors(each, shape.of, f"{path}[{i}]")
    elif not isinstance(value, Mapping):
        yield f"{path} is not an object"
    else:
        fields = dict.fromkeys(value, shape.of) if isinstance(shape, Each) else shape
        for name, of in fields.items():
            if isinstance(shape, Each) or name in REQUIRED or value.get(name) is not None:
                yield from shape_errors(value.get(name), of, f"{path} {name}")
        if isinstance(shape, Each) and shape.sized:
            yield from (f"{path} {name} is not a size" for name in value if not SIZE.fullmatch(str(name)))


def display_errors(value: object, path: str, depth: int = 0) -> Iterator[str]:
    """Yield a line for each value that can't be shown in a report. The line begins with the path to the value.

    These values are numbers that are not finite or too large, texts that are not valid Unicode, and values that are
    nested too deep.
    """
    if depth > MAX_DEPTH:
        yield f"{path[:100]}… is nested deeper than {MAX_DEPTH}"
    elif isinstance(value, float | int):
        if not abs(value) < MAX_NUMBER:
            yield f"{path} is {str(value)[:30]}, not a number that can be shown"
    elif isinstance(value, str):
        if any("\ud800" <= character <= "\udfff" for character in value):
            yield f"{path} is not Unicode"
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from display_errors(str(name), f"{path} {name!a}", depth)
            yield from display_errors(each, f"{path} {name}", depth + 1)
    elif isinstance(value, list | tuple):
        for i, each in enumerate(value):
            yield from display_errors(each, f"{path}[{i}]", depth + 1)
