"""What metadata hold, told from postings and held against the metadata themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.stores import facets as module
from serving.corpora.stores.facets import facets
from serving.corpora.stores.fields import MAX_ELEMENTS, MAX_FIELDS, MAX_TEXT
from serving.corpora.values import Facets, FacetValue, Scalar
from tests.serving.corpora.stores.test_matching import corpus, metadata

BOOKS: list[dict[str, Any]] = [
    {"year": 1815, "by": {"name": "Austen"}, "tags": ["novel", "irony"], "read": True},
    {"year": 1851, "by": {"name": "Melville"}, "tags": ["novel"], "read": False},
    {"year": 1922.5, "by": None, "tags": [], "read": True, "note": "x" * (MAX_TEXT + 1)},
]


def told(*documents: Mapping[str, Any], values: int = 20) -> dict[str, tuple[Any, ...]]:
    with corpus(*documents) as connection:
        found = facets(connection, values)
    assert found.complete
    return {one.field: tuple(one[1:]) for one in found.fields}


def test_each_field_has_kinds_a_range_and_its_most_frequent_values() -> None:
    assert told(*BOOKS) == {
        "year": (["number"], 1815, 1922.5, [(1815, 1), (1851, 1), (1922.5, 1)], True),
        "by": (["null", "object"], None, None, [(None, 1)], True),
        "by.name": (["string"], None, None, [("Austen", 1), ("Melville", 1)], True),
        "tags": (["list", "string"], None, None, [("novel", 2), ("irony", 1)], True),
        "read": (["boolean"], None, None, [(True, 2), (False, 1)], True),
        "note": (["string"], None, None, [], False),
    }


def test_so_many_values_and_whether_there_are_others() -> None:
    documents = [{"a": i % 4} for i in range(7)]
    assert told(*documents, values=2)["a"] == (["number"], 0, 3, [(0, 2), (1, 2)], False)
    assert told(*documents, values=4)["a"] == (["number"], 0, 3, [(0, 2), (1, 2), (2, 2), (3, 1)], True)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("text", (["string"], None, None, [], False)),
        ("number", (["number"], 3, 2**64 - 1, [(3, 1)], False)),
        ("list", (["boolean", "list", "number"], 0, MAX_ELEMENTS, [(True, 1)], False)),
        ("within.text", (["number", "string"], 7, 7, [(7, 1)], False)),
        ("year", (["number"], 1815, 1851, [(1815, 1), (1851, 1)], True)),
    ],
)
def test_what_is_too_large_to_be_posted_is_read(field: str, expected: tuple[Any, ...]) -> None:
    long = "x" * (MAX_TEXT + 1)
    found = told(
        {"text": long, "number": 2**64 - 1, "list": [*range(MAX_ELEMENTS + 1)], "within": {"text": long}, "year": 1815},
        {"number": 3, "list": True, "within": {"text": 7}, "year": 1851},
    )
    assert found[field] == expected


def test_a_document_of_too_many_fields_is_read_where_others_have_them() -> None:
    many = {"a": 2, "tags": ["x"]} | {f"field{i}": i for i in range(MAX_FIELDS)}
    with corpus({"a": 1, "b": 1, "tags": "x"}, many) as connection:
        found = facets(connection, 20)
    assert not found.complete
    assert {one.field: tuple(one[1:]) for one in found.fields} == {
        "a": (["number"], 1, 2, [(1, 1)], False),
        "b": (["number"], 1, 1, [(1, 1)], True),
        "tags": (["list", "string"], None, None, [("x", 1)], False),
    }


def test_no_range_is_told_where_more_documents_are_open_than_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [{"a": 1}, {"a": 2**64 - 1}, {"a": 2**64 - 3}]
    monkeypatch.setattr(module, "OPEN", 2)
    assert told(*documents)["a"] == (["number"], 1, 2**64 - 1, [(1, 1)], False)
    monkeypatch.setattr(module, "OPEN", 1)
    assert told(*documents)["a"] == (["number"], None, None, [(1, 1)], False)


def test_a_corpus_without_metadata() -> None:
    assert told() == told({}, {}) == {}


def test_a_field_that_no_document_has_any_more_is_not_told_of() -> None:
    with corpus({"a": 1}, {"b": 2}) as connection:
        module.facets(connection, 1)
        connection.execute("DELETE FROM postings WHERE document = 1")
        assert [one.field for one in facets(connection, 1).fields] == ["b"]


def test_fields_that_no_document_has_any_more_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FIELDS", 2)
    with corpus({"a": 1, "b": 2, "c": 3}, {"d": 4}) as connection:
        connection.execute("DELETE FROM postings WHERE document = 1")
        found = facets(connection, 1)
    assert ([one.field for one in found.fields], found.complete) == (["d"], True)


def test_there_may_be_more_fields_than_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FIELDS", 2)
    with corpus({"a": 1}, {"b": 2}) as connection:
        assert facets(connection, 1).complete
    with corpus({"a": 1}, {"b": 2}, {"c": 3}) as connection:
        found = facets(connection, 1)
    assert ([one.field for one in found.fields], found.complete) == (["a", "b"], False)


def test_what_is_too_much_to_be_counted_is_listed_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    documents: Sequence[dict[str, Any]] = [{"id": i, "tags": [i % 2 == 0, "x"]} for i in (3, 1, 2)]
    ids, tags = ["number"], ["boolean", "list", "string"]
    for counted, expected in (
        (12, {"id": (ids, 1, 3, [(1, 1), (2, 1)], False), "tags": (tags, None, None, [("x", 3), (False, 2)], False)}),
        (
            11,
            {
                "id": (ids, 1, 3, [(1, 1), (2, 1)], False),
                "tags": (tags, None, None, [("x", None), (False, None)], False),
            },
        ),
        (
            2,
            {
                "id": (ids, 1, 3, [(1, None), (2, None)], False),
                "tags": (tags, None, None, [("x", None), (False, None)], False),
            },
        ),
    ):
        monkeypatch.setattr(module, "COUNTED", counted)
        assert told(*documents, values=2) == expected


def test_fields_of_few_values_are_counted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNTED", 3)
    found = told(*({"id": i, "odd": i % 2} for i in (3, 1, 2)), values=2)
    assert found["id"][3:] == ([(1, None), (2, None)], False)
    assert found["odd"][3:] == ([(1, 2), (0, 1)], True)


@given(st.lists(metadata, max_size=6), st.booleans())
def test_whatever_the_metadata(documents: list[dict[str, Any]], counted: bool) -> None:
    expected = Counter(pair for document in documents for pair in set(_scalars(document, "")))
    with pytest.MonkeyPatch.context() as patched, corpus(*documents) as connection:
        if not counted:
            patched.setattr(module, "COUNTED", 0)
        found: Facets = facets(connection, 1000)
    listed = {(one.field, _key(value.value)): value.documents for one in found.fields for value in one.values}
    assert listed == {pair: count if counted else None for pair, count in expected.items()}
    for one in found.fields:
        assert [*one.values] == sorted(one.values, key=_by_frequency), "most frequent first"
        there = [value for document in documents for path, value in _elements(document, "") if path == one.field]
        numbers = [value for value in there if isinstance(value, int | float) and not isinstance(value, bool)]
        assert (one.least, one.greatest) == ((min(numbers), max(numbers)) if numbers else (None, None))
        assert one.complete == all(_is_listed(value) or isinstance(value, list | dict) for value in there)


def _by_frequency(value: FacetValue) -> int:
    return -(value.documents or 0)


def _key(value: Scalar) -> tuple[str, Scalar]:
    """True is not 1 here."""
    return "boolean" if isinstance(value, bool) else "other", value


def _scalars(found: Mapping[str, Any], parent: str) -> Iterator[tuple[str, tuple[str, Scalar]]]:
    """Path and value of all that can be listed."""
    return ((path, _key(value)) for path, value in _elements(found, parent) if _is_listed(value))


def _elements(found: Mapping[str, Any], parent: str) -> Iterator[tuple[str, Any]]:
    """Path and value of all that a filter reaches, of a list each element."""
    for name, value in found.items():
        for one in value if isinstance(value, list) else [value]:
            yield parent + name, one
            if isinstance(one, Mapping):
                yield from _elements(one, f"{parent}{name}.")


def _is_listed(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    if isinstance(value, int):
        return -(2**63) <= value < 2**63 or (value < 1e300 and float(value) == value)
    return value is None or isinstance(value, float)
