"""Translation of filters to expressions of Milvus, over two derived fields of each row.

The operators of Milvus on JSON differ from our filters. They do not search objects within lists, do not find a name
with a dot by a dotted path, and do not compare dates. Each row therefore has two derived fields. `terms` has a hash of
each pair of path and value. `ranges` has the smallest and the greatest number, string and date at each path. Filters
have the same results as on a local store. A filter that these fields can't answer is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import orjson

from serving.corpora.filters import (
    ID,
    SUBSTRING,
    All,
    AnyOf,
    Compares,
    Element,
    Exists,
    Filter,
    In,
    Kind,
    Near,
    Not,
    canonical,
    instant,
    is_number,
)
from serving.errors import Invalid

MAX_TERMS = 4096
"""Maximum number of terms of a row. It is the maximum length of an array in Milvus."""
MAX_TEXT = 256
"""Maximum characters of a string in `ranges`. Longer strings are cut. Operands of filters must be shorter than this."""
LARGEST = 1e300
"""Greatest number in `ranges`. Greater numbers of documents are stored as this number. Operands must be smaller."""
MAX_RANGES = 65_536
"""Maximum bytes of a JSON field in Milvus."""
TERM_LENGTH = 24
_OPERATORS = {"$gt": (">", "high"), "$gte": (">=", "high"), "$lt": ("<", "low"), "$lte": ("<=", "low")}
"""For each operator of filters: the operator of Milvus, and the end of a field's range that it compares. For example,
`$gt` compares the greatest number of a list, because a list matches if any of its numbers is greater."""
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})
_EVERYTHING, _NOTHING = "passage >= 0", "passage < 0"
Several = Callable[[str], bool]
"""Function that returns whether any document of the corpus matches the given expression."""


def literal(text: str) -> str:
    """Return a string literal of Milvus' expressions."""
    return f'"{text.translate(_ESCAPED)}"'


def literals(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(literal, texts))}]"


def derived(metadata: Mapping[str, Any]) -> tuple[list[str], dict[str, float | str]]:
    """Return the fields `terms` and `ranges` of a document with this metadata.

    Raises:
        Invalid: the fields exceed the limits of Milvus.
    """
    values: dict[str, list[Any]] = {}
    for path, value in _values(metadata):
        values.setdefault(path, []).extend([value, *(value if isinstance(value, list) else ())])
    terms = dict.fromkeys(_hash("exists", path) for path in values)
    ranges: dict[str, float | str] = {}
    for path, found in values.items():
        terms |= dict.fromkeys(_equals(path, value) for value in found)
        for kind in ("number", "string", "date"):
            places = sorted({place for value in found if (place := _place(value, kind)) is not None})
            if places:
                terms[_hash("has", kind, path)] = None
                if len(places) > 1:
                    terms[_hash("several", kind, path)] = None
                ranges |= {_bound(path, kind, "low"): places[0], _bound(path, kind, "high"): places[-1]}
    if len(terms) > MAX_TERMS:
        raise Invalid(
            f"the metadata have {len(terms)} terms (fields, their types and their different values), but Milvus can "
            f"index only {MAX_TERMS}"
        )
    if len(orjson.dumps(ranges)) > MAX_RANGES:
        raise Invalid("the metadata have more numbers and strings than Milvus can index: send fewer")
    return list(terms), ranges


def expression(where: Filter, several: Several) -> str:  # noqa: PLR0911
    """Translate a filter to an expression of Milvus.

    Milvus can't compare several values of one field with both a lower and an upper bound. For such a comparison,
    `several` is called to find out whether a document has several values in the field. If so, `Invalid` is raised.

    Raises:
        Invalid: Milvus can't evaluate the filter as a local store would.
    """
    match where:
        case All(parts):
            return _joined(" and ", (expression(part, several) for part in parts))
        case AnyOf(parts):
            return _joined(" or ", (expression(part, several) for part in parts))
        case Not(part):
            return f"not ({expression(part, several)})"
        case In(_, ()):
            return _NOTHING
        case In(path, options) if path == ID:
            return f"document in {literals(map(str, options))}"
        case In(str(path), options):
            found = f"array_contains_any(terms, {literals(_equals(path, option) for option in options)})"
            return f"({found} or not {_contains('exists', path)})" if None in options else found
        case Exists(str(path)):
            return _contains("exists", path)
        case Compares(str(path), bounds):
            return _compared(where, path, [name for name, _ in bounds], several)
        case Element():
            raise Invalid(
                "corpora on Milvus do not support $elemMatch: use a condition for each field of the elements",
                field="filter",
            )
        case Near():
            raise Invalid("corpora on Milvus do not support $near: compare latitude and longitude", field="filter")
    raise AssertionError(f"{where}: only a filter within $elemMatch may have no field")


def paths(where: Filter) -> Iterator[str]:
    """Yield the path of each condition that only documents with a value at this path can meet.

    Conditions within `Not` are skipped.
    """
    match where:
        case All(parts) | AnyOf(parts):
            for part in parts:
                yield from paths(part)
        case In(str(path), options) if path != ID and None not in options:
            yield path
        case Compares(str(path)) | Exists(str(path)) | Near(str(path)):
            yield path


def has_field(path: str) -> str:
    """Return the expression for documents with a value at `path`."""
    return _contains("exists", path)


def _compared(where: Compares, path: str, names: list[str], several: Several) -> str:
    if part := next((name for name in names if name in SUBSTRING), None):
        raise Invalid(
            f"corpora on Milvus do not support {part}: compare whole values, or search by words", field="filter"
        )
    kind = where.kind
    directions = {_OPERATORS[name][1] for name in names}
    if len(directions) > 1 and several(_contains("several", kind, path)):
        raise Invalid(
            f"{path!r} is a list of {kind}s in some documents, and Milvus can compare a list with only one bound",
            field="filter",
        )
    tests = [_contains("has", kind, path)]
    for name, operand in where.bounds:
        if isinstance(operand, str) and len(operand) >= MAX_TEXT:
            raise Invalid(
                f"{path!r} is compared with {len(operand)} characters; the maximum is {MAX_TEXT - 1}", field="filter"
            )
        place = _place(operand, kind)
        if place is None or place in (-LARGEST, LARGEST):
            raise Invalid(f"{path!r} is compared with {operand!r}, which is too large", field="filter")
        sign, end = _OPERATORS[name]
        value = literal(place) if isinstance(place, str) else repr(place)
        tests.append(f'ranges["{_bound(path, kind, end)}"] {sign} {value}')
    return _joined(" and ", tests)


def _place(value: Any, kind: Kind) -> float | str | None:
    """Convert `value` to the form in which the field `ranges` stores it.

    Return None if `value` is not of this kind.
    """
    if kind == "number":
        return float(max(-LARGEST, min(LARGEST, value))) if is_number(value) else None
    if not isinstance(value, str):
        return None
    if kind == "string":
        return value[:MAX_TEXT]
    moment = instant(value)
    return None if moment is None else moment[:6].hex() + moment[6:].decode()


def _values(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each dotted path with its value; see `filters.values_at`."""
    for name, value in metadata.items():
        yield name, value
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, Mapping):
                yield from ((f"{name}.{path}", found) for path, found in _values(one))


def _joined(operator: str, parts: Iterable[str]) -> str:
    several = list(parts)
    return f"({operator.join(several)})" if several else _EVERYTHING


def _contains(*parts: str) -> str:
    return f'array_contains(terms, "{_hash(*parts)}")'


def _hash(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=TERM_LENGTH // 2).hexdigest()


def _equals(path: str, value: Any) -> str:
    return _hash("=", path, canonical(value))


def _bound(path: str, kind: Kind, end: str) -> str:
    return f"{_hash('bound', kind, path)}_{end}"
