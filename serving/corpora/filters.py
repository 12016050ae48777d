"""The filter language over metadata: a JSON object becomes a tree of conditions.

`{"field": value}`, `{"field": {"$gt": 3}}`, `$and`, `$or`, `$not`; dotted paths reach into objects and into the objects
of lists. A list matches if one of its elements passes every test of a condition. As in MongoDB, `null` matches an
absent field, `$ne` and `$nin` are negations, and `$elemMatch` asks for one element that matches a whole filter. `$near`
asks for a distance between points. `$id` is the id of the document.
"""

from __future__ import annotations

import difflib
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal

import orjson

from serving.corpora.geo import Point, box, distance, point
from serving.errors import Invalid
from serving.operations.json_body import MAX_DEPTH, TOO_DEEP, is_unicode, levels, no_json
from serving.operations.threads import check_cancelled

_DATE = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)"
    r"(?:[Tt ](?P<minute>(?:[01]\d|2[0-3]):[0-5]\d)(?::(?P<second>[0-5]\d|60)(?:\.(?P<fraction>\d+))?)?"
    r"(?P<offset>[Zz]|[+-](?:[01]\d|2[0-3]):?[0-5]\d)?)?",
    re.ASCII,
)
_FIRST, _DAY = datetime(1, 1, 1, tzinfo=UTC), 86_400
MAX_CONDITIONS = 1000
"""Maximum number of conditions in a filter. Each condition is a lookup. An `$in` counts as one condition."""
MAX_VALUES = 100_000
"""Maximum number of values within all lists and objects of a filter. All values are checked in one step, which
blocks other requests."""
LARGE = 1000
"""Number of values from which a filter is compiled in a thread. Compiling such a filter takes more than a
millisecond."""
MAX_NAME = 65_536
"""Maximum characters of a field name or operator. Error messages repeat the names of all enclosing conditions."""
MAX_TEXTS = 1000
"""Maximum characters of a field that word search looks at."""
ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
SUBSTRING: dict[str, Callable[[Any, Any], bool]] = {"$contains": operator.contains, "$startswith": str.startswith}
"""Operators for parts of strings. They compare code points, so case matters."""
_COMPARISONS = ORDER | SUBSTRING
OPERATORS = ("$eq", "$ne", *ORDER, "$in", "$nin", *SUBSTRING, "$exists", "$elemMatch", "$near", "$not")
"""Operators for the value of a field."""
_LOGIC = ("$and", "$or", "$not")
"""Operators that combine filters."""
_MEANT = {name.strip("$").lower(): name for name in OPERATORS}
_MEANT |= {"=": "$eq", "==": "$eq", "!=": "$ne", ">": "$gt", ">=": "$gte", "<": "$lt", "<=": "$lte"}
"""Names of the operators in other query languages. Error messages suggest our operator."""
ID = "$id"
"""Name of the document's id in filters. No metadata field can be queried by this name."""
_Path = str | None
"""A dotted path; None in a filter of `$elemMatch` that tests the element itself."""
Kind = Literal["number", "string", "date"]


def instant(text: str) -> bytes | None:
    """Return the point in time of a date, with or without a time of day, as sortable bytes.

    Return None for any other text.

    A date means its midnight. A time without an offset is in UTC, as in Qdrant.
    """
    if not (found := _DATE.fullmatch(text)):
        return None
    second = int(found["second"] or 0)
    try:
        minute = datetime.fromisoformat(f"{found['day']}T{found['minute'] or '00:00'}{found['offset'] or 'Z'}".upper())
    except ValueError:  # the calendar does not have this day
        return None
    seconds = (
        _DAY + (minute - _FIRST) // timedelta(seconds=1) + second
    )  # an offset may lead to the day before the first
    # Digits of a fraction sort like the fraction if trailing zeros are removed.
    return seconds.to_bytes(6) + (found["fraction"] or "").rstrip("0").encode()


class _Named:
    """A filter with a unique name. Two filters have the same name only if they are identical.

    The name distinguishes 1 from True, which are equal in Python but match different values.
    """

    @cached_property
    def name(self) -> str:
        """The text form of the filter.

        It is computed once, because a large filter blocks all other threads for long.
        """
        return repr(self)


@dataclass(frozen=True)
class All(_Named):
    """Filter that matches if every part matches. Without parts it matches everything."""

    parts: tuple[Filter, ...]

    def matches(self, metadata: Any) -> bool:
        return all(part.matches(metadata) for part in self.parts)


@dataclass(frozen=True)
class AnyOf(_Named):
    """Filter that matches if at least one part matches."""

    parts: tuple[Filter, ...]

    def matches(self, metadata: Any) -> bool:
        return any(part.matches(metadata) for part in self.parts)


@dataclass(frozen=True)
class Not(_Named):
    """Filter that matches if its part does not match."""

    part: Filter

    def matches(self, metadata: Any) -> bool:
        return not self.part.matches(metadata)


@dataclass(frozen=True)
class In(_Named):
    """Filter that matches if a value at `path`, or an element of a list at `path`, equals one of `options`.

    An absent value equals null.
    """

    path: _Path
    options: tuple[Any, ...]

    def matches(self, metadata: Any) -> bool:
        return any(map(self.accepts, _candidates(metadata, self.path)))

    def accepts(self, value: Any) -> bool:
        """Return whether a single value is among the options."""
        if isinstance(value, list | dict):
            return bool(self._containers) and canonical(value) in self._containers
        return _scalar(value) in self._scalars

    @cached_property
    def _containers(self) -> frozenset[str]:
        return frozenset(canonical(option) for option in self.options if isinstance(option, list | dict))

    @cached_property
    def _scalars(self) -> frozenset[tuple[bool, Any]]:
        # A NaN equals nothing, but a set would find it by identity.
        scalars = (option for option in self.options if not isinstance(option, list | dict) and option == option)  # noqa: PLR0124
        return frozenset(map(_scalar, scalars))


@dataclass(frozen=True)
class Compares(_Named):
    """Filter that matches if a value at `path`, or an element of a list at `path`, satisfies all `bounds`.

    Each bound is an operator of `ORDER` or `SUBSTRING` and its operand. Finite numbers compare with numbers. If all
    operands are dates, strings compare as points in time. Otherwise, and with an operator of `SUBSTRING`, strings
    compare by code point.
    """

    path: _Path
    bounds: tuple[tuple[str, int | float | str], ...]

    def matches(self, metadata: Any) -> bool:
        return any(map(self.accepts, _candidates(metadata, self.path)))

    def accepts(self, value: Any) -> bool:
        """Return whether a single value is within the bounds."""
        place = _placed(value, self.kind)
        return place is not None and all(_COMPARISONS[name](place, operand) for name, operand in self.placed)

    @cached_property
    def kind(self) -> Kind:
        """The kind of value that matches: number, string or date."""
        operands = [operand for _, operand in self.bounds]
        if any(map(is_number, operands)):
            return "number"
        dates = not SUBSTRING.keys() & dict(self.bounds) and all(
            isinstance(one, str) and instant(one) for one in operands
        )
        return "date" if dates else "string"

    @cached_property
    def placed(self) -> list[tuple[str, int | float | str | bytes]]:
        """The bounds, in which each date is replaced by its `instant`."""
        return [(name, _placed(operand, self.kind)) for name, operand in self.bounds]


@dataclass(frozen=True)
class Exists(_Named):
    """Filter that matches if there is a value at `path`, even null."""

    path: _Path

    def matches(self, metadata: Any) -> bool:
        return bool(_at(metadata, self.path))


@dataclass(frozen=True)
class Element(_Named):
    """Filter that matches if an element of a list at `path` matches `part`.

    If `itself` is false, only elements that are objects can match.
    """

    path: _Path
    part: Filter
    itself: bool

    def matches(self, metadata: Any) -> bool:
        return any(
            self.part.matches(element)
            for found in _at(metadata, self.path)
            if isinstance(found, list)
            for element in found
            if self.itself or isinstance(element, Mapping)
        )


@dataclass(frozen=True)
class Near(_Named):
    """Filter that matches if a point at `path`, or in a list at `path`, is at most `within_m` metres from `center`."""

    path: _Path
    center: Point
    within_m: float

    def matches(self, metadata: Any) -> bool:
        return any(map(self.accepts, _candidates(metadata, self.path)))

    def accepts(self, value: Any) -> bool:
        found = point(value)
        return found is not None and distance(found, self.center) <= self.within_m

    @cached_property
    def box(self) -> Filter:
        """A filter that matches every document that this filter matches, and maybe others."""
        lat, lons = box(self.center, self.within_m)
        within = (_range(f"{self.path}.lat", lat), AnyOf(tuple(_range(f"{self.path}.lon", lon) for lon in lons)))
        return All(within)


def _range(path: str, bounds: tuple[float, float]) -> Compares:
    return Compares(path, (("$gte", bounds[0]), ("$lte", bounds[1])))


Filter = All | AnyOf | Not | In | Compares | Exists | Element | Near


def compile_filter(condition: Any, field: str = "filter") -> Filter:
    """Compile a JSON value into a filter.

    Raises:
        Invalid: `condition` is not a filter; the message names the path of the error.
    """
    return _Compiler(field).filter(condition, field, 0)


def is_large(condition: Any) -> bool:
    """Return whether a JSON value is too large to be compiled on the event loop."""
    seen = 0
    for level in levels(condition):
        seen += len(level)
        if seen > LARGE:
            return True
    return False


def read_filter(text: str, field: str = "filter") -> Filter:
    """Compile a JSON text into a filter.

    Raises:
        Invalid: the text is not JSON, or not a filter.
    """
    try:
        return compile_filter(orjson.loads(text), field)
    except orjson.JSONDecodeError as error:
        raise Invalid(f"not JSON: {error}", field=field) from None


class _Compiler:
    """Compiler of one filter. It counts conditions and values, so that it refuses a large filter early."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._conditions = self._values = 0
        self._in_element = False

    def filter(self, condition: Any, field: str, depth: int) -> Filter:
        if depth > MAX_DEPTH:
            raise Invalid(TOO_DEEP, field=field)
        if not isinstance(condition, dict):
            raise Invalid("must be an object", field=field)
        if not condition and depth:
            raise Invalid("must name a field: it would match everything", field=field)
        return _all(self._clause(key, value, self._path(field, key), depth + 1) for key, value in condition.items())

    def _clause(self, key: str, value: Any, field: str, depth: int) -> Filter:
        if key in ("$and", "$or"):
            if not isinstance(value, list) or not value:
                raise Invalid("must be a list of at least one filter", field=field)
            parts = [self.filter(part, f"{field}.{i}", depth) for i, part in enumerate(value)]
            return _all(parts) if key == "$and" else AnyOf(tuple(parts))
        if key == "$not":
            return Not(self.filter(value, field, depth))
        if key == ID and self._in_element:
            raise Invalid("the id is that of the document: ask for it beside $elemMatch", field=field)
        if key.startswith("$") and key != ID:
            raise Invalid("unknown operator; here stand $and, $or, $not, $id or the name of a field", field=field)
        if not is_unicode(key):
            raise Invalid("not valid Unicode: a lone surrogate", field=field)
        _check_logic(key, value, field)
        return self._test(key, value, field, depth)

    def _test(self, path: _Path, value: Any, field: str, depth: int) -> Filter:
        if not (isinstance(value, dict) and any(key.startswith("$") for key in value)):
            _check_operators(value, field)
            return self._operator(path, "$eq", value, f"{field}.$eq", depth)
        parts = [self._operator(path, key, operand, self._path(field, key), depth) for key, operand in value.items()]
        return _all(_of_one_value(path, parts, field))

    def _operator(self, path: _Path, name: str, operand: Any, field: str, depth: int) -> Filter:
        if depth > MAX_DEPTH:
            raise Invalid(TOO_DEEP, field=field)
        if name in ("$ne", "$nin"):
            return Not(self._operator(path, "$eq" if name == "$ne" else "$in", operand, field, depth))
        if name == "$not":
            return Not(self._test(path, operand, field, depth + 1))
        if name == "$elemMatch" and path != ID:
            return self._element(path, operand, field, depth + 1)
        if name == "$near" and path != ID:
            return self._near(path, operand, field)
        return self._leaf(path, name, operand, field)

    def _element(self, path: _Path, operand: Any, field: str, depth: int) -> Filter:
        if itself := _tests_a_value(operand):
            return Element(path, self._test(None, operand, field, depth), itself)
        _check_operators(operand, field)
        outer, self._in_element = self._in_element, True
        part = self.filter(operand, field, depth)
        self._in_element = outer
        return Element(path, part, itself)

    def _near(self, path: _Path, operand: Any, field: str) -> Filter:
        self._count(operand, field)
        center = point(operand)
        if center is None or operand.keys() != {"lat", "lon", "within_m"}:
            raise Invalid("must be an object with lat, lon (degrees) and within_m (metres)", field=field)
        if not is_number(operand["within_m"]) or operand["within_m"] < 0:
            raise Invalid("must be a number of metres", field=f"{field}.within_m")
        return Near(path, center, operand["within_m"])

    def _leaf(self, path: _Path, name: str, operand: Any, field: str) -> Filter:
        self._count(operand, field)
        if path == ID:
            return _of_ids(name, operand, field)
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
            return Compares(path, ((name, operand),))
        if name in SUBSTRING:
            if not _is_string(operand):
                raise Invalid("must be a string", field=field)
            return Compares(path, ((name, operand),))
        nearest = difflib.get_close_matches(name[:20].lower(), [one.lower() for one in OPERATORS], n=1, cutoff=0.7)
        meant = f", did you mean {_MEANT[nearest[0].strip('$')]}?" if nearest else ""
        raise Invalid(f"unknown operator{meant}; known are {' '.join(OPERATORS)}, $and $or", field=field)

    def _path(self, field: str, name: str) -> str:
        if len(name) > MAX_NAME:
            raise Invalid(
                f"the name {name[:20]!r}… has {len(name)} characters, more than {MAX_NAME}", field=self._field
            )
        return f"{field}.{name}"

    def _count(self, operand: Any, field: str) -> None:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise Invalid(
                f"more than {MAX_CONDITIONS} conditions; many values of a field are one $in", field=self._field
            )
        for depth, level in enumerate(levels(operand)):
            check_cancelled()
            if depth == MAX_DEPTH:
                raise Invalid(TOO_DEEP, field=field)
            if wrong := no_json(level):
                raise Invalid(wrong, field=field)
            self._values += len(level) if depth else 0  # the operand itself counts as the condition
            if self._values > MAX_VALUES:
                raise Invalid(f"more than {MAX_VALUES} values within lists and objects", field=self._field)


def _check_logic(key: str, value: Any, field: str) -> None:
    """Refuse a field name that looks like a misspelt `$and`, `$or` or `$not`."""
    if (meant := f"${key.lower()}") not in _LOGIC:
        return
    objects = value if isinstance(value, list) else [value]
    if objects and all(isinstance(one, dict) and one and not _tests_a_value(one) for one in objects):
        named = json.dumps({key: {"$eq": "…"}}, ensure_ascii=False)
        raise Invalid(f"did you mean {meant}? For a field of this name write {named}", field=field)


def _check_operators(value: Any, field: str) -> None:
    """Refuse an object whose keys look like misspelt operators. Otherwise the object would be compared as a value."""
    if isinstance(value, dict) and value and all(key.lower() in _MEANT for key in value):
        key = next(iter(value))
        equal = 'For a field that holds this object write {"$eq": {…}}'
        raise Invalid(f"did you mean {_MEANT[key.lower()]}? {equal}", field=f"{field}.{key}")


def _of_ids(name: str, operand: Any, field: str) -> Filter:
    """Return the filter of document ids. Integers match the ids that are their decimal strings."""
    if name not in ("$eq", "$in"):
        raise Invalid("ids are asked for by $eq, $ne, $in, $nin and $not", field=field)
    options = [operand] if name == "$eq" else operand
    if not isinstance(options, list) or any(isinstance(one, bool) or not isinstance(one, str | int) for one in options):
        raise Invalid(f"must be {'an id' if name == '$eq' else 'a list of ids'}, each a string", field=field)
    return In(ID, tuple(map(str, options)))


def _all(parts: Iterable[Filter]) -> Filter:
    """Return the conjunction of `parts`. For a single part, return that part."""
    several = tuple(parts)
    return several[0] if len(several) == 1 else All(several)


def _of_one_value(path: _Path, parts: Sequence[Filter], field: str) -> list[Filter]:
    """Merge conditions on a single value: all bounds into one range, and all options that lie within the range."""
    bounds = tuple(bound for part in parts if isinstance(part, Compares) for bound in part.bounds)
    if len({is_number(operand) for _, operand in bounds}) > 1:
        raise Invalid("no value is within these bounds: one is a number, another a string", field=field)
    ranges = [Compares(path, bounds)] if bounds else []
    sets = [part for part in parts if isinstance(part, In)]
    others = [part for part in parts if not isinstance(part, In | Compares)]
    if not sets:
        return [*ranges, *others]
    tests: list[In | Compares] = [*sets[1:], *ranges]
    if not tests:
        return [sets[0], *others]
    return [In(path, tuple(one for one in sets[0].options if all(test.accepts(one) for test in tests))), *others]


def _tests_a_value(condition: Any) -> bool:
    """Return True if the keys of `condition` are operators for a value, and False if they are field names.

    For `$not`, its operand decides.
    """
    while isinstance(condition, dict):
        operators = {key for key in condition if key.startswith("$")} - {"$and", "$or", ID}
        if operators != {"$not"}:
            return bool(operators)
        condition = condition["$not"]
    return False


def with_id(metadata: Mapping[str, Any], id: str) -> dict[str, Any]:
    """Return a document's metadata with its id under the name `ID`, for filters to match."""
    return {**metadata, ID: id}


def values_at(metadata: Mapping[str, Any], path: str) -> Iterator[Any]:
    """Yield all values at a dotted path. Names may contain dots, and all objects of a list are searched."""
    if "." not in path:
        if path in metadata:
            yield metadata[path]
        return
    for name, value in metadata.items():
        if name == path:
            yield value
        elif path.startswith(f"{name}."):
            for one in value if isinstance(value, list) else (value,):
                if isinstance(one, Mapping):
                    yield from values_at(one, path[len(name) + 1 :])


def texts_at(metadata: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the strings at a dotted path, and in lists there, up to `MAX_TEXTS` characters in all."""
    left = MAX_TEXTS
    for value in values_at(metadata, path):
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str) and left > 0:
                yield text[:left]
                left -= len(text)


def _at(found: Any, path: _Path) -> list[Any]:
    """Return the values at `path`.

    Every condition calls this, so that a filter can be cancelled between two conditions.
    """
    check_cancelled()
    return [found] if path is None else list(values_at(found, path))


def _candidates(found: Any, path: _Path) -> list[Any]:
    """Return the values at the path, and the elements of each list at the path.

    An absent field has the value null.
    """
    values = _at(found, path)
    if path is None:
        return values
    return [*values, *(one for value in values if isinstance(value, list) for one in value)] if values else [None]


def _placed(value: Any, kind: Kind) -> Any:
    """Return the sort key of `value` among values of `kind`. Return None if `value` is of another kind."""
    if kind == "number":
        return value if is_number(value) else None
    if not isinstance(value, str):
        return None
    return value if kind == "string" else instant(value)


def is_number(value: Any) -> bool:
    """Return whether `value` is a finite number. Booleans are not numbers."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _scalar(value: Any) -> tuple[bool, Any]:
    """Return a key for a JSON scalar.

    Keys are equal exactly if the scalars are equal in JSON, where true differs from 1.
    """
    return isinstance(value, bool), value


def canonical(value: Any) -> str:
    """Return a text for a JSON value. Two values have the same text exactly if they are equal.

    true differs from 1, 1 equals 1.0, and the order of keys does not matter. Python hashes texts with a random secret,
    so nobody can send thousands of values with the same hash.
    """
    if not isinstance(value, (dict, list)):
        return repr(int(value)) if isinstance(value, float) and value.is_integer() else repr(value)
    check_cancelled()
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{canonical(value[key])}" for key in sorted(value)) + "}"
    return "[" + ",".join(map(canonical, value)) + "]"
