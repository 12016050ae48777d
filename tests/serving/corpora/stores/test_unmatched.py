"""Warnings of what no document can match."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.filter_language import compile_filter
from serving.corpora.stores.fields import MAX_FIELDS, MAX_TEXT
from serving.corpora.stores.unmatched import MAX_WARNINGS, _Fields, unmatched
from serving.errors import Invalid
from tests.serving.corpora.stores.test_matching import bounds, corpus, found, metadata, ordered, path, value

DOCUMENTS: list[dict[str, Any]] = [
    {"year": 1815, "price": "4.50", "by": [{"name": "Austen"}], "read": True, "added": "2024-03-05", "gone": None},
    {"year": 1851, "by": [{"name": "Melville", "born": 1819}], "long": "x" * (MAX_TEXT + 1), "tags": ["novel"]},
]


def warnings(where: Any, *documents: dict[str, Any]) -> list[str]:
    with corpus(*documents or DOCUMENTS) as connection:
        return unmatched(connection, compile_filter(where))


@pytest.mark.parametrize(
    ("where", "warning"),
    [
        ({"yaer": 1815}, "no document has the field 'yaer'. Did you mean 'year'?"),
        ({"YEAR": {"$ne": 1}}, "no document has the field 'YEAR'. Did you mean 'year'?"),
        ({"name": "Austen"}, "no document has the field 'name'. Did you mean 'by.name'?"),
        ({"by": {"$elemMatch": {"nmae": "x"}}}, "no document has the field 'by.nmae'. Did you mean 'by.name'?"),
        ({"must": [{"key": "year"}]}, "no document has the field 'must'."),
        ({"id": "a"}, "no document has the field 'id'. Did you mean '$id', the id of the document?"),
        ({"yaer": {"$exists": True}}, "no document has the field 'yaer'. Did you mean 'year'?"),
        (
            {"price": {"$gte": 4}},
            "no document has a number in 'price', only strings. A CSV column has numbers if its header is "
            "'price:number', or with ?column_types=auto.",
        ),
        ({"price": {"$in": [4, 5]}}, "no document has a number in 'price', only strings. A CSV column has numbers"),
        ({"year": "1815"}, "no document has a string in 'year', only numbers. Write numbers, true and false without"),
        ({"read": {"$not": {"$eq": "true"}}}, "no document has a string in 'read', only booleans. Write numbers, true"),
        ({"price": {"$gt": "2024-01-01"}}, "no document has a date in 'price', only strings. Write a date as"),
        ({"year": [1815]}, "no document has a list in 'year', only numbers. For one of several values use $in."),
        ({"year": {"min": 1815}}, "no document has an object in 'year', only numbers. Operators begin with $"),
        ({"year": {"$elemMatch": {"$gt": 1}}}, "no document has a list in 'year', only numbers."),
        ({"by": {"$elemMatch": {"born": "1819"}}}, "no document has a string in 'by.born', only numbers."),
        ({"by": "Austen"}, "no document has a string in 'by', only lists and objects."),
        ({"gone": 1}, "no document has a number in 'gone', only null."),
        ({"$or": [{"year": 1815}, {"$and": [{"$not": {"pirce": 4}}]}]}, "no document has the field 'pirce'. Did you"),
    ],
)
def test_it_is_named(where: Any, warning: str) -> None:
    (told,) = warnings(where)
    assert told.startswith(warning)


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"year": 1900},
        {"year": {"$in": ["1815", 1815]}},
        {"year": {"$in": []}},
        {"by.name": {"$gt": "Z"}},
        {"by": {"$elemMatch": {"name": "Jane", "born": {"$lt": 1800}}}},
        {"tags": {"$elemMatch": {"$eq": "x"}}},
        {"added": {"$gt": "2024-03-05T08:30:00Z"}},
        {"added": {"$gt": "2024-03"}},
        {"long": {"$gt": "y"}},
        {"long": 3},
        {"long": {"$exists": True}},
        {"gone": None},
        {"yaer": None},
        {"yaer": {"$exists": False}},
        {"$not": {"yaer": {"$exists": True}}},
        {"$id": "nobody's"},
    ],
)
def test_what_may_match_another_document_is_not(where: Any) -> None:
    assert warnings(where) == []


positive = (
    st.builds(lambda operand: {"$eq": operand}, value)
    | st.builds(lambda options: {"$in": options}, st.lists(value, max_size=3))
    | st.dictionaries(bounds, ordered, min_size=1, max_size=2)
    | st.just({"$exists": True})
)
nested = st.builds(lambda at, test: {"$elemMatch": {at: test}}, path, positive)


@given(st.lists(metadata, max_size=5), path, positive | nested)
def test_whatever_is_warned_of_matches_nothing(documents: list[dict[str, Any]], at: str, test: Any) -> None:
    try:
        compile_filter({at: test})
    except Invalid:
        return  # bounds of two types
    with corpus(*documents) as connection:
        if unmatched(connection, compile_filter({at: test})):
            assert found(connection, {at: test}) == []


def test_a_corpus_that_may_have_any_field_is_not_warned_of() -> None:
    assert warnings({"yaer": 1}, {str(i): i for i in range(MAX_FIELDS + 1)}) == []


def test_an_empty_corpus_has_no_field() -> None:
    with corpus() as connection:
        (told,) = unmatched(connection, compile_filter({"year": 1}))
    assert told == "no document has the field 'year'. The corpus is empty."


def test_warnings_are_few_and_each_is_told_once() -> None:
    assert len(warnings({"$or": [{f"unheard of {i}": 1} for i in range(MAX_WARNINGS + 5)]})) == MAX_WARNINGS
    assert len(warnings({"$or": [{"yaer": i} for i in range(3)]})) == 1


def test_no_more_is_looked_for_than_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find a name that is near takes long: an attack asked for a thousand."""
    nearest = Mock(return_value="")
    monkeypatch.setattr(_Fields, "_nearest", nearest)
    assert len(warnings({f"f{i}": 1 for i in range(500)})) == MAX_WARNINGS == nearest.call_count
    assert len(warnings({"$or": [{"yaer": i} for i in range(500)]})) == 1 == nearest.call_count - MAX_WARNINGS


def test_long_names_are_found_by_their_end_alone() -> None:
    """Comparing two names takes the square of their length."""
    long = {"x" * 300: 1, f"{'y' * 300}.name": 1}
    assert warnings({"x" * 299: 1}, long) == [f"no document has the field {'x' * 100!r}."]
    assert warnings({"name": 1}, long)[0].endswith(f"Did you mean {'y' * 100!r}?")
