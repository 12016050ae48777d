"""Filters answered from postings, held against `matches`, the oracle."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.filter_language import compile_filter
from serving.corpora.filters import instant, with_id
from serving.corpora.stores import fields, matching
from serving.corpora.stores.fields import (
    FALSE,
    LIST,
    MAX_ELEMENTS,
    MAX_FIELDS,
    MAX_PATH,
    MAX_TEXT,
    NULL,
    OBJECT,
    OPAQUE,
    TRUE,
    posted_date,
)
from serving.errors import Invalid

NUMBERS = [0, 1, -1, 2, 1.5, -0.0, 2**53, 2**53 + 1, 2.0**53, 2**63 - 1, 2**63, 2**63 + 1, 2.0**63, -(2**63), 1e300]
STRINGS = [
    "",
    "a",
    "b",
    "ab",
    "A",
    "a\ud7ff",
    "a\ue000",
    "a\U0010ffffb",
    "é",
    "z",
    "\U0001f600",
    "\uffff",
    "a\0",
    "1",
    "x" * MAX_TEXT,
    "x" * MAX_TEXT + "y",
]
DATES = [
    "2024-03-05",
    "2024-03-05T00:00:00Z",
    "2024-03-05T10:00:00+02:00",
    "2024-03-05T08:00:00.5Z",
    f"2024-03-05T08:00:00.5{'0' * MAX_TEXT}1Z",
    "2024-03",
    "2024-02-30",
]
NAMES = ["a", "b", "c", "", "a.b", "$x"]

strings = st.sampled_from(STRINGS) | st.sampled_from(DATES)
scalar = st.none() | st.booleans() | st.sampled_from(NUMBERS) | strings | st.text(max_size=2)
value = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=5,
)
metadata = st.dictionaries(st.sampled_from(NAMES), value, max_size=4)
ordered = st.sampled_from([*NUMBERS, 10**400, -(10**400)]) | strings | st.just("\ud800")
pieces = (
    strings | st.text(max_size=2) | st.sampled_from(["\U0010ffff", "a\U0010ffff", "\ud7ff", "\ud800", "x" * MAX_TEXT])
)
bounds = st.sampled_from(["$gt", "$gte", "$lt", "$lte"])
test = (
    st.builds(lambda operator, operand: {operator: operand}, st.sampled_from(["$eq", "$ne"]), value)
    | st.builds(
        lambda operator, options: {operator: options}, st.sampled_from(["$in", "$nin"]), st.lists(value, max_size=4)
    )
    | st.dictionaries(bounds, ordered, min_size=1, max_size=2)
    | st.dictionaries(bounds, st.sampled_from(DATES), min_size=1, max_size=2)
    | st.builds(
        lambda options, bound: {"$in": options} | bound, st.lists(scalar), st.dictionaries(bounds, ordered, max_size=1)
    )
    | st.dictionaries(st.sampled_from(["$contains", "$startswith", "$gte"]), pieces, min_size=1, max_size=3)
    | st.builds(lambda options, part: {"$in": options, "$contains": part}, st.lists(scalar), pieces)
    | st.builds(lambda exists: {"$exists": exists}, st.booleans())
    | st.just({"$eq": float("nan")})
)
path = st.sampled_from(["a", "b", "c", "a.b", "b.a", "a.b.c", "", "a.", "a.$x"])
not_test = st.builds(lambda inner: {"$not": inner}, test)
ids = st.sampled_from(["d1", "d2", "d3", "d9"])
of_id = ids | st.builds(lambda one: {"$ne": one}, ids) | st.builds(lambda some: {"$in": some}, st.lists(ids))
condition = st.recursive(
    st.dictionaries(path, test | value | not_test, min_size=1, max_size=2) | st.builds(lambda one: {"$id": one}, of_id),
    lambda inner: (
        st.builds(lambda at, part: {at: {"$elemMatch": part}}, path, inner | test | not_test)
        | st.builds(lambda parts: {"$and": parts}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda parts: {"$or": parts}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda part: {"$not": part}, inner)
    ),
    max_leaves=5,
)


@contextmanager
def corpus(*documents: Mapping[str, Any]) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(
            "CREATE TABLE documents (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL)"
        )
        for statement in fields.TABLES:
            connection.execute(statement)
        rows = list(enumerate(documents, start=1))
        connection.executemany(
            "INSERT INTO documents VALUES (?, ?, ?)",
            [(number, f"d{number}", json.dumps(found)) for number, found in rows],
        )
        fields.index(connection, rows)
        yield connection


def found(connection: sqlite3.Connection, where: Any) -> list[int]:
    return [int(number) for number in matching.matching(connection, compile_filter(where))]


def expected(documents: Sequence[Mapping[str, Any]], where: Any) -> list[int]:
    matches = compile_filter(where).matches
    return [number for number, metadata in enumerate(documents, start=1) if matches(with_id(metadata, f"d{number}"))]


@given(
    documents=st.lists(metadata, max_size=8),
    conditions=st.lists(condition, min_size=1, max_size=4),
    read=st.sampled_from([0.0, 1.0, math.inf]),
)
def test_postings_equal_the_oracle(documents: list[dict[str, Any]], conditions: list[Any], read: float) -> None:
    with corpus(*documents) as connection, pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "READ", read)  # 0: documents are read wherever possible; inf: only where they must be
        for where in conditions:
            try:
                compile_filter(where)
            except Invalid:
                continue  # a value that is an object with an operator in it
            assert found(connection, where) == expected(documents, where)
        assert fields.check(connection) == []


@given(documents=st.lists(metadata, max_size=6), gone=st.sets(st.integers(1, 6)), where=condition)
def test_what_is_removed_is_found_no_more(documents: list[dict[str, Any]], gone: set[int], where: Any) -> None:
    try:
        matches = compile_filter(where).matches
    except Invalid:
        return
    rows = dict(enumerate(documents, start=1))
    with corpus(*documents) as connection:
        fields.remove(connection, [(number, rows[number]) for number in gone & rows.keys()])
        connection.executemany("DELETE FROM documents WHERE number = ?", [(number,) for number in gone])
        left = [n for n, kept in rows.items() if n not in gone and matches(with_id(kept, f"d{n}"))]
        assert found(connection, where) == left
        assert fields.check(connection) == []
        if gone >= rows.keys():
            assert connection.execute("SELECT count(*) FROM postings").fetchone() == (0,)


def test_postings_of_one_document_are_written_before_the_next_is_looked_at() -> None:
    """Of 256 documents they may be millions."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in fields.TABLES:
            connection.execute(statement)
        written = list[int]()

        def rows() -> Iterator[tuple[int, Mapping[str, Any]]]:
            for number in range(1, 4):
                written.append(connection.execute("SELECT count(*) FROM postings").fetchone()[0])
                yield number, {f"field {number}": [number, "a"]}

        fields.index(connection, rows())
        assert written == [0, 3, 6]


@pytest.mark.parametrize(
    ("metadata", "posted"),
    [
        ({}, set()),
        ({"a": 1, "b": {"c": "x", "d": {}}}, {("a", 1), ("b", OBJECT), ("b.c", "x"), ("b.d", OBJECT)}),
        ({"a": [1, 1.0, "1", [], None, True]}, {("a", v) for v in (LIST, 1, "1", NULL, TRUE)}),
        ({"a": False, "b": 2**63, "c": 2**63 + 1}, {("a", FALSE), ("b", 2.0**63), ("c", OPAQUE)}),
        ({"a.b": 1, "b": {"a.b": 1}}, {("a.b", 1), ("b", OBJECT), ("b.a.b", 1)}),
        (
            {"a": [{"b": 1}, {"b": [2, "x"]}, {"c": {"d": 3}}, 4]},
            {("a", LIST), ("a", OBJECT), ("a", 4), ("a.b", 1), ("a.b", LIST), ("a.b", 2), ("a.b", "x")}
            | {("a.c", OBJECT), ("a.c.d", 3)},
        ),
        (
            {"a": [{"b": i} for i in range(MAX_ELEMENTS)]},
            {("a", LIST), ("a", OBJECT)} | {("a.b", i) for i in range(256)},
        ),
        ({"a": [{"b": [i, i]} for i in range(200)]}, {("a", LIST), ("a", OBJECT), ("a.b", OPAQUE)}),
        (
            {"at": "2024-03-05T10:00:00+02:00"},
            {("at", "2024-03-05T10:00:00+02:00"), ("at", posted_date(instant("2024-03-05T08:00:00Z") or b""))},
        ),
        ({"a": "x" * MAX_TEXT, "b": "x" * MAX_TEXT + "x"}, {("a", "x" * MAX_TEXT), ("b", OPAQUE)}),
        ({"a": [1] * MAX_ELEMENTS, "b": [1] * (MAX_ELEMENTS + 1)}, {("a", LIST), ("a", 1), ("b", OPAQUE)}),
        ({"a" * MAX_PATH: 1}, {("a" * MAX_PATH, 1)}),
        ({"a" * (MAX_PATH + 1): {"b": 1}}, {(None, OPAQUE)}),
        ({str(i): i for i in range(MAX_FIELDS + 1)}, {(None, OPAQUE)}),
    ],
)
def test_what_is_posted(metadata: dict[str, Any], posted: set[tuple[str | None, fields.Value]]) -> None:
    assert fields.posted(metadata) == posted


BEYOND_BOUNDS: list[dict[str, Any]] = [
    {"a": 1, **{f"f{i}": i for i in range(MAX_FIELDS)}},
    {"a": 1, "x" * (MAX_PATH + 1): {"b": 1}},
    {"a": [*range(MAX_ELEMENTS + 1)]},
    {"a": [1, "x" * MAX_TEXT + "y"]},
    {"a": {"b": ["é" * MAX_TEXT, 2**63 + 1]}},
    {"a": [{"b": [i, i]} for i in range(MAX_ELEMENTS)]},
    {"a": 1},
    {},
]


@pytest.mark.parametrize(
    "where",
    [
        {"a": 1},
        {"a": {"$ne": 1}},
        {"a": None},
        {"a": {"$exists": True}},
        {"a": {"$exists": False}},
        {"a": MAX_ELEMENTS},
        {"a": {"$gt": "x" * MAX_TEXT}},
        {"a": {"$gte": "x" * MAX_TEXT + "y"}},
        {"a.b": {"$gt": 2**63}},
        {"a.b": {"$lt": 10**400}},
        {"a.b": {"$in": ["é" * MAX_TEXT, 3]}},
        {"a": {"$elemMatch": {"b": {"$gt": MAX_ELEMENTS - 2}}}},
        {"a": {"$elemMatch": {"$not": {"$lt": MAX_ELEMENTS}}}},
        {f"f{MAX_FIELDS - 1}": {"$gte": 0}},
        {"x" * (MAX_PATH + 1) + ".b": 1},
        {"$or": [{"a": 1}, {"a": None}]},
        {"$not": {"$and": [{"a": 1}, {"f0": 0}]}},
    ],
)
def test_documents_beyond_the_bounds_are_read(where: Any) -> None:
    with corpus(*BEYOND_BOUNDS) as connection:
        assert found(connection, where) == expected(BEYOND_BOUNDS, where)
        assert connection.execute("SELECT count(*) FROM postings").fetchone() < (20,)


def test_of_an_and_only_the_few_candidates_of_its_rarest_part_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [{"rare": i == 7, "even": i % 2 == 0, "n": i} for i in range(100)]
    read: list[int] = []

    def spied(reader: sqlite3.Connection, chosen: fields.Numbers) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
        read.extend(chosen.tolist())
        return fields.documents(reader, chosen)

    monkeypatch.setattr(matching, "documents", spied)
    with corpus(*documents) as connection:
        assert found(connection, {"even": False, "n": {"$lt": 50}, "rare": True}) == [8]
        assert read == [8]
        assert found(connection, {"even": False, "n": {"$lt": 50}}) == [*range(2, 51, 2)]
        assert read == [8]


def test_a_list_of_ids_may_be_long() -> None:
    with corpus({}, {}, {"a": 1}) as connection:
        assert found(connection, {"$id": {"$in": [f"d{i}" for i in range(2, 40_000)]}}) == [2, 3]


def test_an_option_list_may_be_long() -> None:
    with corpus({"a": 1}, {"a": "39999"}, {"a": 40_001}) as connection:
        assert found(connection, {"a": {"$in": [*range(40_001), *map(str, range(40_000))]}}) == [1, 2]


def test_check_names_what_is_wrong() -> None:
    with corpus({"a": 1}, {"a": [1, 2]}) as connection:
        connection.execute("DELETE FROM postings WHERE document = 2 AND value = 2")
        connection.execute("INSERT INTO postings VALUES (1, 'ghost', 9), (1, 'ghost', 10)")
        assert fields.check(connection) == ["postings: 1 missing", "postings: 2 of no document"]


def test_one_document_at_a_time_is_in_memory() -> None:
    """Each may have 64 KB of metadata."""
    with corpus(*[{"a": i} for i in range(100)]) as connection:
        read = Mock(side_effect=bytes.decode)
        connection.text_factory = read
        assert next(fields.documents(connection, np.arange(1, 101))) == (1, "d1", {"a": 0})
        assert read.call_count < 10
