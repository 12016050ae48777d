"""Evaluations in a report, with unique names and with checks of their format.

A report can be made from files of unknown origin, so the types of all parts that the page reads are checked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any

from models.errors import Refused
from training.evaluation.report.svg import mark

FORMAT = 1


class ReportError(Refused):
    """An evaluation can't be shown. The message contains its name and the reason."""


@dataclass(frozen=True)
class Evaluated:
    """An evaluation of an encoder, with its name and style in the report."""

    name: str
    """Name that is unique in the report."""
    mark: str
    """Style of the evaluation's dots and lines in plots."""
    values: Mapping[str, Any]

    def get(self, *path: str) -> Any:
        """Return the value at a path of nested names in the evaluation, or None."""
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
    """Check the evaluations and give them unique names, in order.

    Equal names are numbered.

    Raises:
        ReportError: there are no evaluations; or an evaluation has an unsupported format, or a part of it has a wrong
            type.
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
        judged.append(Evaluated(unique, mark(i), evaluation))
    return judged


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


class Kind(Enum):
    """Types of single values. The values of this enum are the types' names in messages."""

    NUMBER = "a number"
    TEXT = "text"
    FACT = "text or a number"


@dataclass(frozen=True)
class Fields:
    """Shape of an object with known fields, which may be missing or null. Other fields are allowed."""

    of: Mapping[str, Shape]
    """Shapes of the known fields, by name."""
    whole: bool = False
    """True if all known fields are required."""


@dataclass(frozen=True)
class Each:
    """Shape of an object with any names and with values of one shape."""

    of: Shape
    sized: bool = False
    """True if the names are whole numbers from 1."""


@dataclass(frozen=True)
class Listed:
    """Shape of a list of values of one shape. In an evaluation that was not read from JSON, the list may be a tuple."""

    of: Shape


Shape = Kind | Fields | Each | Listed


def _numbers(names: str) -> dict[str, Shape]:
    return dict.fromkeys(names.split(), Kind.NUMBER)


def _facts(names: str) -> dict[str, Shape]:
    return dict.fromkeys(names.split(), Kind.FACT)


_AGGREGATES = Fields(_numbers("all mean wmean"))
_STS = Fields(
    {
        "spearman": _AGGREGATES,
        "pearson": _AGGREGATES,
        "pairs": Kind.NUMBER,
        "subsets": Each(Fields(_numbers("spearman pearson pairs"))),
    }
)
_TRANSFER = Fields(
    {**_numbers("accuracy f1 dev_accuracy"), "folds": Listed(Fields(_numbers("c test"), whole=True))},
)
_GEOMETRY = Fields(
    {
        **_numbers("sentences alignment alignment_at_least_4 uniformity random_cosine_mean random_cosine_sd"),
        **_numbers("correlation_rank correlation_rank_of_64"),
        "sentences_of": Kind.TEXT,
        "spectrum": Fields(_numbers("effective_rank")),
        "spectrum_centred": Fields({"effective_rank": Kind.NUMBER, "values": Listed(Kind.NUMBER)}),
        "cosine_histogram": Fields({"edges": Listed(Kind.NUMBER), "share": Listed(Kind.NUMBER)}, whole=True),
        "top4_cosine": Each(Kind.NUMBER, sized=True),
        "nearest_cosines": Each(Listed(Kind.NUMBER), sized=True),
    }
)
EVALUATION = Fields(
    {
        "command": Kind.TEXT,
        "created": Kind.TEXT,
        "subject": Fields(
            {
                **_facts("source kind name pooling transform dim max_length engine precision device fingerprint"),
                "objective": Kind.TEXT,
                "backbone": Kind.TEXT,
                "bytes": Kind.NUMBER,
            }
        ),
        "environment": Fields({}),
        "sts": Fields({"tasks": Each(_STS), "mean": Kind.NUMBER}),
        "transfer": Fields({"tasks": Each(_TRANSFER), "mean": Kind.NUMBER}),
        "retrieval": Each(
            Fields({**_numbers("ndcg10 mrr10 recall100 queries documents missing"), "through": Kind.TEXT})
        ),
        "geometry": _GEOMETRY,
        "curve": Listed(
            Fields(
                _numbers(
                    "step stsb_dev_spearman sickr_dev_spearman sts_dev_spearman dev_spearman known_item_ndcg10 "
                    "self_retrieval_mrr10 uniformity alignment effective_rank removed_share"
                )
            )
        ),
        "best_step": Kind.NUMBER,
        "speed": Fields(
            {**_numbers("texts seconds texts_per_second"), "latency_ms": Fields(_numbers("p50 p95"))},
        ),
        "precisions": Each(
            Fields({**_numbers("sts_mean least_cosine texts_per_second bytes"), "cosine_to": Kind.TEXT})
        ),
    }
)


def shape_errors(value: object, shape: Shape, path: str) -> Iterator[str]:
    """Yield a line for each value of the wrong shape. The line begins with the path to the value."""
    match shape:
        case Kind():
            if not _is(value, shape):
                yield f"{path} is not {shape.value}"
        case Listed(of):
            if not isinstance(value, list | tuple):
                yield f"{path} is not a list"
                return
            for i, each in enumerate(value):
                yield from shape_errors(each, of, f"{path}[{i}]")
        case _:
            if not isinstance(value, Mapping):
                yield f"{path} is not an object"
                return
            for name, each, of in _parts(value, shape):
                yield from shape_errors(each, of, f"{path} {name}")
            if isinstance(shape, Each) and shape.sized:
                yield from (f"{path} {name} is not a size" for name in value if not SIZE.fullmatch(str(name)))


def _parts(value: Mapping[str, object], shape: Fields | Each) -> Iterator[tuple[str, object, Shape]]:
    """Yield the name, value and expected shape of each field whose shape is known."""
    if isinstance(shape, Each):
        yield from ((name, each, shape.of) for name, each in value.items())
    else:
        known = ((name, value.get(name), of) for name, of in shape.of.items())
        yield from (part for part in known if shape.whole or part[1] is not None)


def _is(value: object, kind: Kind) -> bool:
    number = isinstance(value, float | int) and not isinstance(value, bool)
    text = isinstance(value, str)
    return {Kind.NUMBER: number, Kind.TEXT: text, Kind.FACT: text or number}[kind]


def display_errors(value: object, path: str, depth: int = 0) -> Iterator[str]:
    """Yield a line for each number or text that no page can show. The line begins with the path to the value."""
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
