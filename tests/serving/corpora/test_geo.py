"""Distances on the earth, against vectors in float64, and filters and orders by them against slow versions."""

from __future__ import annotations

from math import acos, cos, radians, sin
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.arranging import sorted_by
from serving.corpora.filter_language import compile_filter
from serving.corpora.filters import EARTH_RADIUS, Near, Point, box, distance, point
from serving.corpora.stores.sqlite import MemoryStore
from serving.corpora.values import Corpus, Document, Sort
from serving.errors import Invalid
from tests.serving.corpora.stores.contents import content, filled

lats, lons = st.floats(-90, 90), st.floats(-180, 180)
points = st.builds(Point, lats, lons)
near_poles = st.builds(Point, st.sampled_from([-90, -89.9999, 89.9999, 90]) | lats, st.sampled_from([-180, 179.9999]))
radii = st.floats(0, 25_000_000) | st.floats(0, 2000)


def slow_distance(a: Point, b: Point) -> float:
    """Radius times the angle between the vectors from the middle of the earth."""

    def vector(one: Point) -> Any:
        lat, lon = radians(one.lat), radians(one.lon)
        return np.array([cos(lat) * cos(lon), cos(lat) * sin(lon), sin(lat)])

    left, right = vector(a), vector(b)
    return EARTH_RADIUS * float(np.arctan2(np.linalg.norm(np.cross(left, right)), left @ right))


@given(points | near_poles, points | near_poles)
def test_distance_is_that_of_vectors(a: Point, b: Point) -> None:
    assert distance(a, b) == pytest.approx(slow_distance(a, b), rel=1e-6, abs=1e-2)
    assert distance(a, b) == distance(b, a)


def test_distance_between_cities() -> None:
    munich, vienna = Point(48.1374, 11.5755), Point(48.2082, 16.3738)
    assert distance(munich, vienna) == pytest.approx(355_700, rel=5e-3)
    angle = acos(
        sin(radians(48.1374)) * sin(radians(48.2082))
        + cos(radians(48.1374)) * cos(radians(48.2082)) * cos(radians(16.3738 - 11.5755))
    )
    assert distance(munich, vienna) == pytest.approx(EARTH_RADIUS * angle, rel=1e-9)


@given(points | near_poles, points | near_poles, radii)
def test_a_box_has_every_point_within_the_distance(center: Point, other: Point, within: float) -> None:
    lat, ranges = box(center, within)
    inside = lat[0] <= other.lat <= lat[1] and any(low <= other.lon <= high for low, high in ranges)
    assert inside or distance(center, other) > within


places = st.fixed_dictionaries({"lat": st.floats(-90, 90), "lon": st.sampled_from([-180, -179.9, 0, 0.5, 179.9, 180])})
values: st.SearchStrategy[Any] = (
    places | st.lists(places, max_size=3) | st.sampled_from([None, 3, {"lat": 1}, {"lat": "1", "lon": 2}, []])
)
documents = st.lists(st.fixed_dictionaries({}, optional={"at": values, "in": st.fixed_dictionaries({"x": values})}))


@given(documents, points | near_poles, radii, st.sampled_from(["at", "in.x"]))
def test_a_filter_finds_the_documents_within_the_distance(
    metadata: list[dict[str, Any]], center: Point, within: float, path: str
) -> None:
    where = compile_filter({path: {"$near": {**center._asdict(), "within_m": within}}})
    rows = [(str(i), f"text {i}", one) for i, one in enumerate(metadata)]

    def matches(one: dict[str, Any]) -> bool:
        found = one.get("at") if path == "at" else one.get("in", {}).get("x")
        legal = map(point, found if isinstance(found, list) else [found])
        return any(distance(place, center) <= within for place in legal if place)

    expected = [name for name, _, one in rows if matches(one)]
    assert [name for name, _, one in rows if where.matches(one)] == expected
    store = MemoryStore()
    try:
        if rows:
            filled(store, "c", content(rows))
        else:
            store.create(Corpus("c"))
        assert store.ids_matching("c", where) == expected
        both = compile_filter({"$not": {path: {"$near": {**center._asdict(), "within_m": within}}}})
        assert store.ids_matching("c", both) == [name for name, _, _ in rows if name not in expected]
    finally:
        store.close()


@given(documents, points, st.booleans())
def test_hits_are_sorted_by_the_nearest_point(metadata: list[dict[str, Any]], near: Point, descending: bool) -> None:
    def nearest(one: dict[str, Any]) -> float | None:
        found = one.get("at")
        legal = [place for value in (found if isinstance(found, list) else [found]) if (place := point(value))]
        return min((distance(place, near) for place in legal), default=None)

    rows = [Document(str(i), "", one) for i, one in enumerate(metadata)]
    distances = [nearest(one) for one in metadata]
    there = [i for i, found in enumerate(distances) if found is not None]
    there.sort(key=lambda i: -(distances[i] or 0) if descending else distances[i] or 0)
    missing = [i for i, found in enumerate(distances) if found is None]
    assert sorted_by(rows, [Sort("at", descending, near)]) == there + missing


@pytest.mark.parametrize(
    "asked",
    [
        3,
        {},
        {"lat": 1, "lon": 2},
        {"lat": 91, "lon": 2, "within_m": 3},
        {"lat": 1, "lon": 181, "within_m": 3},
        {"lat": True, "lon": 2, "within_m": 3},
        {"lat": 1, "lon": 2, "within_m": -1},
        {"lat": 1, "lon": 2, "within_m": "3"},
        {"lat": 1, "lon": 2, "within_m": 3, "unit": "km"},
        {"lat": 1, "lng": 2, "within_m": 3},
    ],
)
def test_what_is_no_circle_is_refused(asked: Any) -> None:
    with pytest.raises(Invalid, match=r"within_m|metres") as refused:
        compile_filter({"at": {"$near": asked}})
    assert str(refused.value.field).startswith("filter.at.$near")


def test_a_circle_may_be_larger_than_the_earth() -> None:
    store = filled(MemoryStore(), "c", content([("a", "text", {"at": {"lat": 0, "lon": 0}})]))
    where = compile_filter({"at": {"$near": {"lat": 0, "lon": 180, "within_m": 10**400}}})
    assert store.ids_matching("c", where) == ["a"]
    store.close()


def test_an_element_of_a_list_may_be_near() -> None:
    where = compile_filter(
        {"shops": {"$elemMatch": {"at": {"$near": {"lat": 0, "lon": 0, "within_m": 9}}, "open": True}}}
    )
    there, elsewhere = {"lat": 0, "lon": 0}, {"lat": 1, "lon": 0}
    assert where.matches({"shops": [{"at": there, "open": True}]})
    assert not where.matches({"shops": [{"at": there, "open": False}, {"at": elsewhere, "open": True}]})
    assert isinstance(compile_filter({"at": {"$near": {"lat": 0, "lon": 0, "within_m": 9}}}), Near)
