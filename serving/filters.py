"""The filter language over metadata: a JSON object becomes a predicate.

`{"field": value}`, `{"field": {"$gt": 3}}`, `$and`, `$or`, `$not`; dotted paths reach into objects. As in MongoDB a
list matches where one of its elements does, `null` matches an absent field, and `$ne`, `$nin` are negations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from serving.errors import Invalid
from serving.json_body import is_unicode

Predicate = Callable[[Mapping[str, Any]], bool]
Test = Callable[[Any], bool]

MAX_DEPTH = 32
_MISSING = object()


def compile_filter(condition: Any, field: str = "filter", depth: int = 0) -> Predicate:
    """The predicate that `condition` describes.

    Raises:
        Invalid: it is not a filter; the message names the path of what is wrong.
    """
    if depth > MAX_DEPTH:
        raise Invalid(f"nested deeper than {MAX_DEPTH}", field=field)
    if not isinstance(condition, dict):
        raise Invalid("must be an object", field=field)
    if not condition and depth:
        raise Invalid("must name a field: it would match everything", field=field)
    clauses = [_clause(key, value, f"{field}.{key}", depth + 1) for key, value in condition.items()]
    return lambda metadata: all(clause(metadata) for clause in clauses)


def _clause(key: str, value: Any, field: str, depth: int) -> Predicate:
    if key in ("$and", "$or"):
        if not isinstance(value, list) or not value:
            raise Invalid("must be a list of at least one filter", field=field)
        parts = [compile_filter(part, f"{field}.{i}", depth) for i, part in enumerate(value)]
        combine = all if key == "$and" else any
        return lambda metadata: combine(part(metadata) for part in parts)
    if key == "$not":
        negated = compile_filter(value, field, depth)
        return lambda metadata: not negated(metadata)
    if key.startswith("$"):
        raise Invalid("unknown operator; here stand $and, $or, $not or the name of a field", field=field)
    if not is_unicode(key):
        raise Invalid("not valid Unicode: a lone surrogate", field=field)
    path, test = key.split("."), _test(value, field, depth)
    return lambda metadata: test(_reach(metadata, path))


def _test(value: Any, field: str, depth: int) -> Test:
    if not (isinstance(value, dict) and any(key.startswith("$") for key in value)):
        return _operator("$eq", value, f"{field}.$eq", depth)
    tests = [_operator(key, operand, f"{field}.{key}", depth) for key, operand in value.items()]
    return lambda found: all(test(found) for test in tests)


def _operator(name: str, operand: Any, field: str, depth: int) -> Test:
    if depth > MAX_DEPTH:
        raise Invalid(f"nested deeper than {MAX_DEPTH}", field=field)
    if name in ("$ne", "$nin"):
        positive = _operator("$eq" if name == "$ne" else "$in", operand, field, depth)
        return lambda found: not positive(found)
    if name == "$not":
        negated = _test(operand, field, depth + 1)
        return lambda found: not negated(found)
    if name == "$eq":
        return lambda found: any(_equal(value, operand) for value in _values(found))
    if name == "$in":
        if not isinstance(operand, list):
            raise Invalid("must be a list", field=field)
        return lambda found: any(_equal(value, option) for value in _values(found) for option in operand)
    if name == "$exists":
        if not isinstance(operand, bool):
            raise Invalid("must be true or false", field=field)
        return lambda found: (found is not _MISSING) is operand
    if name in _ORDER:
        if not _number(operand) and not isinstance(operand, str):
            raise Invalid("must be a number or a string", field=field)
        return lambda found: any(_compares(name, value, operand) for value in _values(found))
    raise Invalid("unknown operator; known are $eq $ne $gt $gte $lt $lte $in $nin $exists $not, $and $or", field=field)


_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": lambda value, operand: value > operand,
    "$gte": lambda value, operand: value >= operand,
    "$lt": lambda value, operand: value < operand,
    "$lte": lambda value, operand: value <= operand,
}


def _reach(metadata: Mapping[str, Any], path: list[str]) -> Any:
    found: Any = metadata
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return _MISSING
        found = found[name]
    return found


def _values(found: Any) -> list[Any]:
    """What may match: the value itself and, of a list, each element; an absent field matches as null."""
    if found is _MISSING:
        return [None]
    return [found, *found] if isinstance(found, list) else [found]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _equal(value: Any, operand: Any) -> bool:
    """JSON's equality: true is not 1, in nested values too."""
    if isinstance(value, bool) or isinstance(operand, bool):
        return value is operand
    if isinstance(value, list) and isinstance(operand, list):
        return len(value) == len(operand) and all(map(_equal, value, operand))
    if isinstance(value, dict) and isinstance(operand, dict):
        return value.keys() == operand.keys() and all(_equal(value[key], operand[key]) for key in value)
    return bool(value == operand)


def _compares(name: str, value: Any, operand: Any) -> bool:
    comparable = (_number(value) and _number(operand)) or (isinstance(value, str) and isinstance(operand, str))
    return comparable and _ORDER[name](value, operand)
