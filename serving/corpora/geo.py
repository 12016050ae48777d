"""Points on the earth, as `{"lat": …, "lon": …}` in metadata, and their distance on a sphere."""

from __future__ import annotations

from collections.abc import Mapping
from math import asin, cos, degrees, pi, radians, sin, sqrt
from typing import Any, NamedTuple

EARTH_RADIUS = 6_371_008.8
"""Mean radius of the earth in metres (IUGG). The earth is not a sphere, so distances have errors of up to 0.5 %."""
_MARGIN = 1e-6
"""Degrees by which a box is enlarged on each side. This is more than the error of the arithmetic."""


class Point(NamedTuple):
    """Point on the earth, by latitude and longitude in degrees."""

    lat: float
    lon: float


def point(value: Any) -> Point | None:
    """Convert a JSON object to a point.

    Other members of the object are ignored. If the value is not a point, return None.
    """
    if isinstance(value, Mapping) and _is_within(value.get("lat"), 90) and _is_within(value.get("lon"), 180):
        return Point(value["lat"], value["lon"])
    return None


def _is_within(degrees: Any, most: int) -> bool:
    return type(degrees) in (int, float) and -most <= degrees <= most


def distance(a: Point, b: Point) -> float:
    """Return the distance between two points on a great circle in metres, by the haversine formula."""
    lat_a, lat_b = radians(a.lat), radians(b.lat)
    half_chord = sin((lat_b - lat_a) / 2) ** 2 + cos(lat_a) * cos(lat_b) * sin(radians(b.lon - a.lon) / 2) ** 2
    return 2 * EARTH_RADIUS * asin(min(1.0, sqrt(half_chord)))


def box(center: Point, within_m: float) -> tuple[tuple[float, float], list[tuple[float, float]]]:
    """Return a range of latitudes, and ranges of longitudes, that contain all points within a distance.

    A circle across longitude 180 has two ranges of longitudes. A circle around a pole has all longitudes.
    """
    angle = within_m / EARTH_RADIUS
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
