"""Filters on metadata: a tree of conditions, and functions that get the tested values from documents.

A list matches if one of its elements passes every test of a condition. As in MongoDB, `null` matches an absent field.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from math import asin, cos, degrees, pi, radians, sin, sqrt
from typing import Any, Literal, NamedTuple

from serving.operations.threads import check_cancelled

_DATE = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)"
    r"(?:[Tt ](?P<minute>(?:[01]\d|2[0-3]):[0-5]\d)(?::(?P<second>[0-5]\d|60)(?:\.(?P<fraction>\d+))?)?"
    r"(?P<offset>[Zz]|[+-](?:[01]\d|2[0-3]):?[0-5]\d)?)?",
    re.ASCII,
)
_FIRST, _DAY = datetime(1, 1, 1, tzinfo=UTC), 86_400
MAX_TEXTS = 1000
"""Maximum number of characters that keyword search reads from one metadata field."""
ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
SUBSTRING: dict[str, Callable[[Any, Any], bool]] = {"$contains": operator.contains, "$startswith": str.startswith}
"""Operators that test a part of a string. They compare code points, so they are case-sensitive."""
_COMPARISONS = ORDER | SUBSTRING
ID = "$id"
"""Name of the document's id in filters. A metadata field with this name can't be used in filters."""
FieldPath = str | None
"""A dotted path. In a filter of `$elemMatch`, None is the path of the element itself."""
Kind = Literal["number", "string", "date"]


def instant(text: str) -> bytes | None:
    """Parse a date, with or without a time of day. Return its point in time as sortable bytes.

    Return None for any other text.

    A date without a time means midnight in UTC. A time without an offset is in UTC, as in Qdrant.
    """
    if not (found := _DATE.fullmatch(text)):
        return None
    second = int(found["second"] or 0)
    try:
        minute = datetime.fromisoformat(f"{found['day']}T{found['minute'] or '00:00'}{found['offset'] or 'Z'}".upper())
    except ValueError:  # the calendar does not have this day
        return None
    seconds = _DAY + (minute - _FIRST) // timedelta(seconds=1) + second  # an offset may lead to a time before `_FIRST`
    # Without trailing zeros, the digits of a fraction sort in the order of the fractions.
    return seconds.to_bytes(6) + (found["fraction"] or "").rstrip("0").encode()


class _Named:
    """Base class of filters, which gives each filter a unique name.

    Two filters have the same name only if they are identical. The name distinguishes 1 from True, which are equal in
    Python but match different values.
    """

    @cached_property
    def name(self) -> str:
        """The filter as text. The text is cached, because the computation of a long text blocks all other threads."""
        return repr(self)


@dataclass(frozen=True)
class All(_Named):
    """Filter that matches if all its parts match. A filter without parts matches everything."""

    parts: tuple[Filter, ...]

    def matches(self, metadata: Any) -> bool:
        return all(part.matches(metadata) for part in self.parts)


@dataclass(frozen=True)
class AnyOf(_Named):
    """Filter that matches if at least one of its parts matches."""

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

    An absent value is equal to null.
    """

    path: FieldPath
    options: tuple[Any, ...]

    def matches(self, metadata: Any) -> bool:
        return any(map(self.accepts, _candidates(metadata, self.path)))

    def accepts(self, value: Any) -> bool:
        if isinstance(value, list | dict):
            return bool(self._containers) and canonical(value) in self._containers
        return _scalar(value) in self._scalars

    @cached_property
    def _containers(self) -> frozenset[str]:
        return frozenset(canonical(option) for option in self.options if isinstance(option, list | dict))

    @cached_property
    def _scalars(self) -> frozenset[tuple[bool, Any]]:
        # A set would find NaN by identity, although NaN equals nothing.
        scalars = (option for option in self.options if not isinstance(option, list | dict) and option == option)  # noqa: PLR0124
        return frozenset(map(_scalar, scalars))


@dataclass(frozen=True)
class Compares(_Named):
    """Filter that matches if a value at `path`, or an element of a list at `path`, satisfies all `bounds`.

    Each bound is an operator, in `ORDER` or `SUBSTRING`, with its operand. A numeric operand matches only finite
    numbers. If all operands are dates and no operator is in `SUBSTRING`, strings are compared as points in time, and
    strings that are no dates never match. In all other cases, strings are compared by code point.
    """

    path: FieldPath
    bounds: tuple[tuple[str, int | float | str], ...]

    def matches(self, metadata: Any) -> bool:
        return any(map(self.accepts, _candidates(metadata, self.path)))

    def accepts(self, value: Any) -> bool:
        place = _placed(value, self.kind)
        return place is not None and all(_COMPARISONS[name](place, operand) for name, operand in self.placed)

    @cached_property
    def kind(self) -> Kind:
        operands = [operand for _, operand in self.bounds]
        if any(map(is_number, operands)):
            return "number"
        dates = not SUBSTRING.keys() & dict(self.bounds) and all(
            isinstance(one, str) and instant(one) for one in operands
        )
        return "date" if dates else "string"

    @cached_property
    def placed(self) -> list[tuple[str, int | float | str | bytes]]:
        """The `bounds`, with operands in the form in which they are compared with values.

        If `kind` is "date", `instant` converts the operands to points in time. Otherwise, they stay as they are.
        """
        return [(name, _placed(operand, self.kind)) for name, operand in self.bounds]


@dataclass(frozen=True)
class Exists(_Named):
    """Filter that matches if there is a value at `path`, including null."""

    path: FieldPath

    def matches(self, metadata: Any) -> bool:
        return bool(_at(metadata, self.path))


@dataclass(frozen=True)
class Element(_Named):
    """Filter that matches if an element of a list at `path` matches `part`.

    If `itself` is True, `part` tests the element as a value. If `itself` is False, only elements that are objects can
    match, and `part` tests their fields.
    """

    path: FieldPath
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

    path: FieldPath
    center: Point
    within_m: float

    def matches(self, metadata: Any) -> bool:
        return any(map(self.accepts, _candidates(metadata, self.path)))

    def accepts(self, value: Any) -> bool:
        found = point(value)
        return found is not None and distance(found, self.center) <= self.within_m

    @cached_property
    def box(self) -> Filter:
        """A simpler filter that matches every document that this filter matches, and possibly more documents."""
        lat, lons = box(self.center, self.within_m)
        within = (_range(f"{self.path}.lat", lat), AnyOf(tuple(_range(f"{self.path}.lon", lon) for lon in lons)))
        return All(within)


def _range(path: str, bounds: tuple[float, float]) -> Compares:
    return Compares(path, (("$gte", bounds[0]), ("$lte", bounds[1])))


Filter = All | AnyOf | Not | In | Compares | Exists | Element | Near


def with_id(metadata: Mapping[str, Any], id: str) -> dict[str, Any]:
    """Return a document's metadata with the document's id under the name `ID`, so that filters can test it."""
    return {**metadata, ID: id}


def values_at(metadata: Mapping[str, Any], path: str) -> Iterator[Any]:
    """Yield all values at a dotted path. The path also leads into all objects of a list.

    The name of a field may contain dots itself, so several fields may match the path.
    """
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
    """Yield the strings at a dotted path, including strings in lists, up to `MAX_TEXTS` characters in total."""
    left = MAX_TEXTS
    for value in values_at(metadata, path):
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str) and left > 0:
                yield text[:left]
                left -= len(text)


def _at(found: Any, path: FieldPath) -> list[Any]:
    """Return the list of values at `path` in `found`. If `path` is None, return a list of only `found`.

    If the current work was cancelled, raise `Stopped`.
    """
    check_cancelled()
    return [found] if path is None else list(values_at(found, path))


def _candidates(found: Any, path: FieldPath) -> list[Any]:
    """Return the values at `path`, and the elements of each list at `path`. An absent field has the value null."""
    values = _at(found, path)
    if path is None:
        return values
    return [*values, *(one for value in values if isinstance(value, list) for one in value)] if values else [None]


def _placed(value: Any, kind: Kind) -> Any:
    """Return the sort key of `value` among values of `kind`. If `value` is of another kind, return None."""
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


def _scalar(value: Any) -> tuple[bool, Any]:
    """Return a key for comparisons. Two scalars have the same key exactly if they are equal in JSON.

    In JSON, true differs from 1.
    """
    return isinstance(value, bool), value


def canonical(value: Any) -> str:
    """Return a JSON value as text. Two values have the same text exactly if they are equal.

    As in JSON, true differs from 1, but 1.0 does not. The order of keys does not matter. Sets contain these texts in
    place of the values, because Python hashes texts with a random secret. Nobody can therefore send thousands of values
    with the same hash.
    """
    if not isinstance(value, (dict, list)):
        return repr(int(value)) if isinstance(value, float) and value.is_integer() else repr(value)
    check_cancelled()
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{canonical(value[key])}" for key in sorted(value)) + "}"
    return "[" + ",".join(map(canonical, value)) + "]"


# Points on the earth, as `{"lat": …, "lon": …}` in metadata, and their distance on a sphere.

EARTH_RADIUS = 6_371_008.8
"""Mean radius of the earth in metres (IUGG). The earth is not a sphere, so distances have errors of up to 0.5 %."""
_MARGIN = 1e-6
"""Degrees by which a box is enlarged on each side. This is more than the error of the arithmetic."""


class Point(NamedTuple):
    """Point on the earth, by latitude and longitude in degrees."""

    lat: float
    lon: float


def point(value: Any) -> Point | None:
    """Convert a JSON object with valid `lat` and `lon` to a point. Return None for any other value.

    Other members of the object are ignored.
    """
    if isinstance(value, Mapping) and _is_within(value.get("lat"), 90) and _is_within(value.get("lon"), 180):
        return Point(value["lat"], value["lon"])
    return None


def _is_within(degrees: Any, most: int) -> bool:
    return type(degrees) in (int, float) and -most <= degrees <= most


def distance(a: Point, b: Point) -> float:
    """Return the great-circle distance between two points in metres, by the haversine formula."""
    lat_a, lat_b = radians(a.lat), radians(b.lat)
    half_chord = sin((lat_b - lat_a) / 2) ** 2 + cos(lat_a) * cos(lat_b) * sin(radians(b.lon - a.lon) / 2) ** 2
    return 2 * EARTH_RADIUS * asin(min(1.0, sqrt(half_chord)))


def box(center: Point, within_m: float) -> tuple[tuple[float, float], list[tuple[float, float]]]:
    """Return ranges of latitude and longitude that contain all points within `within_m` metres of `center`.

    There is always one range of latitudes. A circle across longitude 180 has two ranges of longitudes. A circle around
    a pole has all longitudes.
    """
    angle = min(within_m, pi * EARTH_RADIUS) / EARTH_RADIUS  # an integer may be too large for a float
    lat = degrees(angle) + _MARGIN
    latitudes = center.lat - lat, center.lat + lat
    if latitudes[0] <= -90 or latitudes[1] >= 90 or angle >= pi / 2:
        return latitudes, [(-180, 180)]
    lon = degrees(asin(min(1.0, sin(angle) / cos(radians(center.lat))))) + _MARGIN
    west, east = center.lon - lon, center.lon + lon
    if east - west >= 360:
        return latitudes, [(-180, 180)]
    if west < -180:
        return latitudes, [(west + 360, 180), (-180, east)]
    if east > 180:
        return latitudes, [(west, 180), (-180, east - 360)]
    return latitudes, [(west, east)]
