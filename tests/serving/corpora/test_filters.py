"""The filter language."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora import filters
from serving.corpora.filter_language import MAX_CONDITIONS, MAX_NAME, MAX_VALUES, compile_filter
from serving.corpora.filters import In, with_id
from serving.errors import Invalid
from serving.operations.json_body import MAX_DEPTH

BOOK = {
    "year": 2011,
    "title": "Emma",
    "tags": ["a", "b"],
    "author": {"name": "Jane", "born": 1775},
    "sizes": [1, 2],
    "editions": [{"year": 1815, "isbn": {"ean": "x"}}, {"year": 1933, "tags": ["cheap"]}, "lost"],
    "first.published": 1815,
    "added": "2024-03-05T10:00:00+02:00",
    "ok": True,
    "none": None,
    "$id": "of the metadata",
}


@pytest.mark.parametrize(
    ("condition", "matches"),
    [
        ({}, True),
        ({"year": 2011}, True),
        ({"year": 2011.0}, True),
        ({"year": "2011"}, False),
        ({"ok": True}, True),
        ({"ok": 1}, False),
        ({"year": {"$gt": 2010, "$lte": 2011}}, True),
        ({"year": {"$gt": 2011}}, False),
        ({"year": {"$gte": 2011}}, True),
        ({"year": {"$lt": 2011}}, False),
        ({"title": {"$gt": "Ella"}}, True),
        ({"title": {"$gt": 3}}, False),
        ({"ok": {"$gt": 0}}, False),
        ({"year": {"$ne": 1}}, True),
        ({"absent": {"$ne": 1}}, True),
        ({"absent": {"$exists": False}}, True),
        ({"none": {"$exists": True}}, True),
        ({"absent": None}, True),
        ({"none": None}, True),
        ({"year": None}, False),
        ({"tags": "a"}, True),
        ({"tags": ["a", "b"]}, True),
        ({"tags": ["a"]}, False),
        ({"tags": {"$in": ["x", "b"]}}, True),
        ({"tags": {"$nin": ["x", "b"]}}, False),
        ({"year": {"$in": []}}, False),
        ({"author.name": "Jane"}, True),
        ({"author.name.first": "Jane"}, False),
        ({"author": {"name": "Jane", "born": 1775}}, True),
        ({"author": {"name": "Jane"}}, False),
        ({"$and": [{"year": 2011}, {"title": "Emma"}]}, True),
        ({"$or": [{"year": 1}, {"title": "Emma"}]}, True),
        ({"$or": [{"year": 1}, {"title": "x"}]}, False),
        ({"$not": {"year": 1}}, True),
        ({"year": {"$not": {"$gt": 2000}}}, False),
        ({"year": 2011, "title": "x"}, False),
        ({"sizes": {"$gte": 1.5, "$lte": 1.5}}, False),
        ({"sizes": {"$gte": 1.5, "$lte": 2}}, True),
        ({"sizes": {"$in": [1, 3], "$gt": 1}}, False),
        ({"sizes": {"$in": [2, 3], "$gt": 1}}, True),
        ({"sizes": {"$eq": 1, "$in": [2]}}, False),
        ({"sizes": {"$gt": 1, "$ne": 1}}, False),
        ({"sizes": {"$not": {"$gt": 1, "$lt": 2}}}, True),
        ({"$and": [{"sizes": {"$gte": 1.5}}, {"sizes": {"$lte": 1.5}}]}, True),
        ({"editions.year": 1933}, True),
        ({"editions.year": {"$gt": 1815, "$lt": 1933}}, False),
        ({"editions.isbn.ean": "x"}, True),
        ({"editions.tags": "cheap"}, True),
        ({"editions.tags": None}, False),
        ({"editions.price": {"$exists": False}}, True),
        ({"first.published": 1815}, True),
        ({"editions": {"$elemMatch": {"year": 1933, "tags": "cheap"}}}, True),
        ({"editions": {"$elemMatch": {"year": 1815, "tags": "cheap"}}}, False),
        ({"editions": {"$elemMatch": {"$and": [{"year": 1933}, {"tags": "cheap"}]}}}, True),
        ({"editions": {"$elemMatch": {"year": 1815, "tags": None}}}, True),
        ({"editions": {"$elemMatch": {"$not": {"year": {"$exists": True}}}}}, False),
        ({"editions": {"$elemMatch": {"$or": [{"year": 1}, {"isbn.ean": "x"}]}}}, True),
        ({"editions": {"$elemMatch": {"$eq": "lost"}}}, True),
        ({"sizes": {"$elemMatch": {"$ne": 1}}}, True),
        ({"sizes": {"$elemMatch": {"$not": {"$gt": 0}}}}, False),
        ({"year": {"$elemMatch": {"$gt": 0}}}, False),
        ({"author": {"$elemMatch": {"name": "Jane"}}}, False),
        ({"added": {"$gt": "2024-03-05T08:30:00Z"}}, False),
        ({"added": {"$gte": "2024-03-05T08:00:00Z", "$lte": "2024-03-05T08:00:00Z"}}, True),
        ({"added": {"$gt": "2024-03-05"}}, True),
        ({"added": "2024-03-05T08:00:00Z"}, False),
        ({"added": {"$gte": "2024-03", "$lt": "2024-04"}}, True),
        ({"added": {"$gte": "2024-01-01", "$lt": "2024-02"}}, False),
        ({"title": {"$gt": "2024-03-05"}}, False),
        ({"author": {"$eq": {"gt": 4}}}, False),
        ({"author": {"name": "Jane", "in": 4}}, False),
        ({"or": [{"$gt": 1}]}, False),
        ({"not": {"$ne": 1}}, True),
        ({"title": {"$contains": ""}}, True),
        ({"title": {"$not": {"$startswith": "zzz"}}}, True),
        ({"year": {"$startswith": "2"}}, False),
        ({"added": {"$startswith": "2024-03-05"}}, True),
        ({"added": {"$gt": "2024-03-05", "$contains": "T"}}, True),
        ({"added": {"$contains": "t"}}, False),
        ({"$id": "7"}, True),
        ({"$id": 7}, True),
        ({"$id": {"$ne": "7"}}, False),
        ({"$id": {"$in": ["8", 7]}}, True),
        ({"$id": {"$nin": ["8", 9]}}, True),
        ({"$id": {"$not": {"$in": ["8", 7]}}}, False),
        ({"$id": "8", "year": 2011}, False),
        ({"id": "7"}, False),
    ],
)
def test_matches(condition: dict[str, Any], matches: bool) -> None:
    assert compile_filter(condition).matches(with_id(BOOK, "7")) is matches


def test_integers_have_no_bound() -> None:
    assert compile_filter({"a": {"$lt": 10**400}}).matches({"a": 2**64})
    assert not compile_filter({"a": {"$gt": 0}}).matches({"a": math.inf})


@pytest.mark.parametrize(
    ("condition", "path"),
    [
        (7, "filter: "),
        ({"$and": []}, "filter.$and: "),
        ({"$and": [{}]}, "filter.$and.0: "),
        ({"$or": [{"a": 1}, {}]}, "filter.$or.1: "),
        ({"$not": {}}, "filter.$not: "),
        ({"\ud800": 1}, "filter.\\ud800: not valid Unicode"),
        ({"a": {"$\ud800": 1}}, "filter.a.$\\ud800: unknown operator"),
        ({"$or": [{"a": 1}, 2]}, "filter.$or.1: "),
        ({"$nor": []}, "filter.$nor: "),
        ({"a": {"$regex": "x"}}, "filter.a.$regex: "),
        ({"a": {"$gt": 1, "b": 2}}, "filter.a.b: "),
        ({"a.b": {"$in": 1}}, "filter.a.b.$in: "),
        ({"a": {"$exists": 1}}, "filter.a.$exists: "),
        ({"a": {"$lt": True}}, "filter.a.$lt: "),
        ({"a": {"gte": 4}}, "filter.a.gte: did you mean $gte?"),
        ({"a": {"Lt": 4, "ne": 1}}, "filter.a.Lt: did you mean $lt?"),
        ({"a": {">": 4}}, "filter.a.>: did you mean $gt?"),
        ({"a": {"$not": {"in": [4]}}}, "filter.a.$not.in: did you mean $in?"),
        ({"a": {"elemMatch": {"b": 1}}}, "filter.a.elemMatch: did you mean $elemMatch?"),
        ({"a": {"$elemMatch": {"gt": 1}}}, "filter.a.$elemMatch.gt: did you mean $gt?"),
        ({"a": {"$ge": 4}}, "filter.a.$ge: unknown operator, did you mean $gte?"),
        ({"a": {"$contains": 4}}, "filter.a.$contains: must be a string"),
        ({"a": {"$startswith": ["b"]}}, "filter.a.$startswith: must be a string"),
        ({"a": {"$startsWith": "b"}}, "filter.a.$startsWith: unknown operator, did you mean $startswith?"),
        ({"a": {"$gt": 1, "$contains": "b"}}, "filter.a: no value can be within these bounds"),
        ({"or": [{"a": 1}, {"b": 2}]}, "filter.or: did you mean $or?"),
        ({"$and": [{"NOT": {"a": 1}}]}, "filter.$and.0.NOT: did you mean $not?"),
        ({"$id": {"$gt": "a"}}, "filter.$id.$gt: $id supports only"),
        ({"$id": {"$elemMatch": {"$eq": "a"}}}, "filter.$id.$elemMatch: $id supports only"),
        ({"a": {"$gte": 1, "lt": 5}}, "filter.a.lt: unknown operator, did you mean $lt?"),
        ({"$id": True}, "filter.$id.$eq: must be an id"),
        ({"$id": {"$in": "a"}}, "filter.$id.$in: must be a list of ids"),
        ({"$id": {"in": ["a"]}}, "filter.$id.in: did you mean $in?"),
        ({"$id.a": 1}, "filter.$id.a: unknown operator"),
        ({"a": {"$elemMatch": {"$id": "x"}}}, "filter.a.$elemMatch.$id: $id is the id of the whole document"),
        ({"a": {"$gt": 1, "$lt": "x"}}, "filter.a: no value can be within these bounds"),
        ({"a": {"$elemMatch": 1}}, "filter.a.$elemMatch: must be an object"),
        ({"a": {"$elemMatch": {}}}, "filter.a.$elemMatch: must have at least one condition"),
        ({"a": {"$elemMatch": {"$gt": True}}}, "filter.a.$elemMatch.$gt: must be"),
        ({"a": math.nan}, "filter.a.$eq: numbers must be finite"),
        ({"a": {"$in": [1, [math.inf]]}}, "filter.a.$in: numbers must be finite"),
        ({"a": {"$ne": {"b": "\ud800"}}}, "filter.a.$ne: not valid Unicode"),
        ({"$not": {"$not": {"a": {"$lte": []}}}}, "filter.$not.$not.a.$lte: "),
    ],
)
def test_refuses_by_path(condition: Any, path: str) -> None:
    with pytest.raises(Invalid) as refused:
        compile_filter(condition)
    assert refused.value.message.startswith(path)


def test_depth_is_bounded() -> None:
    deep: dict[str, Any] = {"a": 1}
    for _ in range(100):
        deep = {"$not": deep}
    with pytest.raises(Invalid, match="nested deeper"):
        compile_filter(deep)
    deep = {"$gt": 1}
    for _ in range(1000):
        deep = {"$not": deep}
    for where in ({"a": deep}, {"a": {"$elemMatch": deep}}, {"not": deep}):
        with pytest.raises(Invalid, match="nested deeper"):
            compile_filter(where)


@pytest.mark.parametrize("test", ["$eq", "$ne", "$in", "$nin"])
def test_no_value_is_nested_deeper_than_metadata_are(test: str) -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert compile_filter({"a": {test: value}})
    for deeper in ([value], {"b": value}):
        with pytest.raises(Invalid, match=rf"filter.b.\$not.\{test}: nested deeper"):
            compile_filter({"b": {"$not": {test: deeper}}})


def test_conditions_are_bounded() -> None:
    many = [{"a": i} for i in range(MAX_CONDITIONS)]
    assert compile_filter({"$or": many}).matches({"a": MAX_CONDITIONS - 1})
    for more in ({"$or": [*many, {"b": 1}]}, {"$not": {"$and": many}, "b": 1}, {"$or": many, "b": {"$gt": 1}}):
        with pytest.raises(Invalid, match="filter: more than 1000 conditions"):
            compile_filter(more)


def test_what_is_too_large_is_left_at_the_first_condition_too_many() -> None:
    read = []

    class Parts(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            for part in super().__iter__():
                read.append(part)
                yield part

    with pytest.raises(Invalid, match="filter: more than 1000 conditions"):
        compile_filter({"$or": Parts([{"a": 1}] * 3 * MAX_CONDITIONS)})
    assert len(read) == MAX_CONDITIONS + 1


def test_values_are_bounded_wherever_they_stand() -> None:
    most = list(range(MAX_VALUES))
    half = most[: MAX_VALUES // 2]
    assert compile_filter({"a": {"$in": most}, "b": 1}).matches({"a": most[-1], "b": 1})
    assert compile_filter({"a": {"$in": half}, "b": {"$not": {"$nin": half}}}).matches({"a": 1, "b": 2})
    for more in (
        {"a": {"$in": [*most, -1]}},
        {"a": {"$nin": [*most, -1]}},
        {"a": {"$in": half}, "$not": {"b": [half]}},
        {"a": {"b": {"c": most}}},
        {"a": {str(i): i for i in most}},
    ):
        with pytest.raises(Invalid, match="filter: more than 100000 values within lists"):
            compile_filter(more)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["a", "b", "$and", "$or", "$not", "$eq", "$gt", "$in", "$exists"]), inner, max_size=3
        )
    ),
)


scalars = (
    st.none() | st.booleans() | st.sampled_from([0, 1, 1.0, -0.0, 0.5, 2**53, 2.0**53, 2**53 + 1, 1e300, "1", "a", ""])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(st.tuples(st.sampled_from(["a", "b", "1", "a:1"]), inner), max_size=3).map(dict)
    ),
    max_leaves=6,
)


def equal(one: Any, other: Any) -> bool:
    """JSON's equality, value by value."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


@given(values, st.lists(values, max_size=4), st.booleans())
def test_a_value_is_among_options_exactly_where_it_equals_one(value: Any, options: list[Any], turned: bool) -> None:
    if turned:  # one that is equal, with its keys in another order
        options = [*options, turned_around(value)]
    among = any(equal(value, option) for option in options)
    assert In("a", tuple(options)).accepts(value) is among
    assert compile_filter({"a": {"$nin": options}}).matches({"a": value}) is not matched(value, options)
    for option in options:
        assert compile_filter({"a": {"$eq": option}}).matches({"a": value}) is matched(value, [option])


def turned_around(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: turned_around(value[key]) for key in reversed(value)}
    return list(map(turned_around, value)) if isinstance(value, list) else value


def matched(value: Any, options: list[Any]) -> bool:
    return any(equal(one, option) for one in [value, *(value if isinstance(value, list) else [])] for option in options)


@pytest.mark.parametrize("of", [lambda i: ["red", f"x{i}"], lambda i: {"a": i, "b": [i]}])
def test_a_value_is_compared_with_any_number_of_containers_in_one_lookup(
    of: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [of(i) for i in range(1000)]
    where = compile_filter({"a": {"$in": options}})
    assert where.matches({"a": options[-1]})
    canonical = Mock(wraps=filters.canonical)
    monkeypatch.setattr(filters, "canonical", canonical)
    assert not where.matches({"a": of(-1)})
    assert canonical.call_count < 20


@pytest.mark.parametrize("where", [{"n" * (MAX_NAME + 1): 1}, {"a": {"$" + "n" * MAX_NAME: 1}}])
def test_a_name_is_no_longer_than_one_can_be(where: Any) -> None:
    with pytest.raises(Invalid, match=r"^filter: the name '\$?n+'… has 65537 characters") as refused:
        compile_filter(where)
    assert len(refused.value.message) < 100


@given(condition=json, metadata=st.dictionaries(st.sampled_from("ab"), json))
def test_any_json_is_a_filter_or_refused(condition: Any, metadata: dict[str, Any]) -> None:
    try:
        where = compile_filter(condition)
    except Invalid:
        return
    assert isinstance(where.matches(metadata), bool)
    if condition:  # an empty one is legal only as the whole filter
        assert compile_filter({"$not": condition}).matches(metadata) is not where.matches(metadata)
