"""The filter language over metadata: a JSON object becomes a tree of conditions.

`{"field": value}`, `{"field": {"$gt": 3}}`, `$and`, `$or`, `$not`; dotted paths reach into objects. As in MongoDB a
list matches where one of its elements does, `null` matches an absent field, and `$ne`, `$nin` are negations.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from serving.errors import Invalid
from serving.json_body import MAX_DEPTH, TOO_DEEP, is_unicode, levels, no_json

MAX_CONDITIONS = 1000
"""Of a filter; each is a lookup, and an $in is one."""
MAX_VALUES = 100_000
"""Of a filter, within all its lists and objects: each is looked at before anything else is answered."""
ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
MISSING = object()
_Path = tuple[str, ...]


@dataclass(frozen=True)
class All:
    """Every part matches; without parts everything does."""

    parts: tuple[Filter, ...]

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a document with these metadata does."""
        return all(part.matches(metadata) for part in self.parts)


@dataclass(frozen=True)
class AnyOf:
    """At least one part matches."""

    parts: tuple[Filter, ...]

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a document with these metadata does."""
        return any(part.matches(metadata) for part in self.parts)


@dataclass(frozen=True)
class Not:
    """Its part does not match."""

    part: Filter

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a document with these metadata does."""
        return not self.part.matches(metadata)


@dataclass(frozen=True)
class In:
    """The value at `path`, or an element of it, equals one of `options`; an absent one equals null."""

    path: _Path
    options: tuple[Any, ...]

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a document with these metadata does."""
        return any(
            any(_equal(value, option) for option in self._containers)
            if isinstance(value, list | dict)
            else _scalar(value) in self._scalars
            for value in _values(reach(metadata, self.path))
        )

    @cached_property
    def _containers(self) -> list[Any]:
        return [option for option in self.options if isinstance(option, list | dict)]

    @cached_property
    def _scalars(self) -> frozenset[tuple[bool, Any]]:
        # A NaN equals nothing, but a set would find it by identity.
        scalars = (option for option in self.options if not isinstance(option, list | dict) and option == option)  # noqa: PLR0124
        return frozenset(map(_scalar, scalars))


@dataclass(frozen=True)
class Compares:
    """The value at `path`, or an element of it, stands in the order `name` to `operand`: finite numbers or strings."""

    path: _Path
    name: str
    operand: int | float | str

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a document with these metadata does."""
        alike = is_number if is_number(self.operand) else _is_string
        compare = ORDER[self.name]
        return any(alike(value) and compare(value, self.operand) for value in _values(reach(metadata, self.path)))


@dataclass(frozen=True)
class Exists:
    """There is a value at `path`, if only null."""

    path: _Path

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a document with these metadata does."""
        return reach(metadata, self.path) is not MISSING


Filter = All | AnyOf | Not | In | Compares | Exists


def compile_filter(condition: Any, field: str = "filter") -> Filter:
    """The conditions that a JSON value describes.

    Raises:
        Invalid: it is not a filter; the message names the path of what is wrong.
    """
    return _Compiler(field).filter(condition, field, 0)


class _Compiler:
    """Counts as it goes: what is too large is refused at once, not when all of it is compiled."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._conditions = self._values = 0

    def filter(self, condition: Any, field: str, depth: int) -> Filter:
        if depth > MAX_DEPTH:
            raise Invalid(TOO_DEEP, field=field)
        if not isinstance(condition, dict):
            raise Invalid("must be an object", field=field)
        if not condition and depth:
            raise Invalid("must name a field: it would match everything", field=field)
        return _all(self._clause(key, value, f"{field}.{key}", depth + 1) for key, value in condition.items())

    def _clause(self, key: str, value: Any, field: str, depth: int) -> Filter:
        if key in ("$and", "$or"):
            if not isinstance(value, list) or not value:
                raise Invalid("must be a list of at least one filter", field=field)
            parts = [self.filter(part, f"{field}.{i}", depth) for i, part in enumerate(value)]
            return _all(parts) if key == "$and" else AnyOf(tuple(parts))
        if key == "$not":
            return Not(self.filter(value, field, depth))
        if key.startswith("$"):
            raise Invalid("unknown operator; here stand $and, $or, $not or the name of a field", field=field)
        if not is_unicode(key):
            raise Invalid("not valid Unicode: a lone surrogate", field=field)
        return self._test(tuple(key.split(".")), value, field, depth)

    def _test(self, path: _Path, value: Any, field: str, depth: int) -> Filter:
        if not (isinstance(value, dict) and any(key.startswith("$") for key in value)):
            return self._operator(path, "$eq", value, f"{field}.$eq", depth)
        return _all(self._operator(path, key, operand, f"{field}.{key}", depth) for key, operand in value.items())

    def _operator(self, path: _Path, name: str, operand: Any, field: str, depth: int) -> Filter:
        if depth > MAX_DEPTH:
            raise Invalid(TOO_DEEP, field=field)
        if name in ("$ne", "$nin"):
            return Not(self._operator(path, "$eq" if name == "$ne" else "$in", operand, field, depth))
        if name == "$not":
            return Not(self._test(path, operand, field, depth + 1))
        self._count(operand, field)
        if name == "$eq":
            return In(path, (operand,))
        if name == "$in":
            if not isinstance(operand, list):
                raise Invalid("must be a list", field=field)
            return In(path, tuple(operand))
        if name == "$exists":
            if not isinstance(operand, bool):
                raise Invalid("must be true or false", field=field)
            return Exists(path) if operand else Not(Exists(path))
        if name in ORDER:
            if not is_number(operand) and not _is_string(operand):
                raise Invalid("must be a number or a string", field=field)
            return Compares(path, name, operand)
        raise Invalid(
            "unknown operator; known are $eq $ne $gt $gte $lt $lte $in $nin $exists $not, $and $or", field=field
        )

    def _count(self, operand: Any, field: str) -> None:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise Invalid(
                f"more than {MAX_CONDITIONS} conditions; many values of a field are one $in", field=self._field
            )
        for depth, level in enumerate(levels(operand)):
            if depth == MAX_DEPTH:
                raise Invalid(TOO_DEEP, field=field)
            if wrong := no_json(level):
                raise Invalid(wrong, field=field)
            self._values += len(level) if depth else 0  # the operand itself is the condition
            if self._values > MAX_VALUES:
                raise Invalid(f"more than {MAX_VALUES} values within lists and objects", field=self._field)


def _all(parts: Iterable[Filter]) -> Filter:
    """One part alone needs nothing around it."""
    several = tuple(parts)
    return several[0] if len(several) == 1 else All(several)


def reach(metadata: Mapping[str, Any], path: _Path) -> Any:
    """What stands at a path, `MISSING` where nothing does."""
    found: Any = metadata
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return MISSING
        found = found[name]
    return found


def _values(found: Any) -> list[Any]:
    """What may match: the value itself and, of a list, each element; an absent field matches as null."""
    if found is MISSING:
        return [None]
    return [found, *found] if isinstance(found, list) else [found]


def is_number(value: Any) -> bool:
    """Whether it has a place in the order of numbers: true, false, NaN and infinities have none."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _scalar(value: Any) -> tuple[bool, Any]:
    """What is equal exactly where the JSON scalars are: in Python alone true is 1."""
    return isinstance(value, bool), value


def _equal(value: Any, operand: Any) -> bool:
    """JSON's equality: true is not 1, in nested values too."""
    if isinstance(value, list) and isinstance(operand, list):
        return len(value) == len(operand) and all(map(_equal, value, operand))
    if isinstance(value, dict) and isinstance(operand, dict):
        return value.keys() == operand.keys() and all(_equal(value[key], operand[key]) for key in value)
    return isinstance(value, bool) is isinstance(operand, bool) and bool(value == operand)
