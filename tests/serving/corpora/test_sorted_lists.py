"""Sorted lists of documents, page by page, against slow versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.arranging import (
    COMPARED,
    first_sorted,
    place_values,
    read_place,
    read_sorts,
    sorted_by,
    written_place,
)
from serving.corpora.values import Document, Place, Sort
from serving.errors import Invalid

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.integers(-2, 2) | st.floats(-2, 2)
values = scalars | st.text(max_size=3) | st.sampled_from(["a" * COMPARED, "a" * COMPARED + "b"])
values |= st.sampled_from(["2024-03-05 09:00", "2024-03-05T08:30:00Z", "2024-03-05T10:00:00+02:00", "2024-03-05"])
metadata = st.dictionaries(st.sampled_from(["x", "y"]), values | st.lists(values, max_size=2), max_size=2)
orders = st.lists(st.builds(Sort, st.sampled_from(["x", "y", "$id"]), st.booleans()), min_size=1, max_size=3)


def slow(rows: Sequence[Document], sort: Sequence[Sort]) -> list[int]:
    """The order of a search, of which the strings are cut."""

    def cut(value: Any) -> Any:
        if isinstance(value, list):
            return [cut(one) for one in value]
        return value[:COMPARED] if isinstance(value, str) else value

    short = [{name: cut(value) for name, value in row.metadata.items()} for row in rows]
    return sorted_by([row._replace(metadata=one) for row, one in zip(rows, short, strict=True)], sort)


@given(st.lists(metadata, max_size=12), orders, st.integers(1, 5), st.data())
def test_pages_are_the_slow_order_cut(
    given_metadata: list[dict[str, Any]], sort: list[Sort], limit: int, data: st.DataObject
) -> None:
    rows = [Document(str(i), "", one) for i, one in enumerate(given_metadata)]
    gone = data.draw(st.sets(st.sampled_from(range(len(rows))))) if rows else set[int]()
    pages, after, left = list[int](), None, list(enumerate(rows))
    while page := first_sorted(left, sort, after, limit):
        pages += page
        place = Place(place_values(rows[page[-1]], sort), page[-1])
        after = read_place(written_place(place, sort), sort, int)
        assert after == place
        left = [one for one in left if one[0] not in gone]  # a page does not depend on documents that are removed
    stay = [i for i in slow(rows, sort) if i not in gone or i in pages]
    assert pages == stay


def test_a_cursor_is_that_of_its_order() -> None:
    sort = read_sorts(["year:desc", "a:b:asc"])
    assert sort == [Sort("year", descending=True), Sort("a:b")]
    place = written_place(Place([1815, None], 3), sort)
    for text, others, position in (
        (place, read_sorts(["year:asc", "a:b:asc"]), int),
        (place, sort[:1], int),
        (place, sort, str),
        (place[:-3], sort, int),
        ("", sort, int),
        ("7", sort, int),
        ("é", sort, int),
        (written_place(Place([[]], 3), sort[:1]), sort[:1], int),  # type: ignore[list-item]
    ):
        with pytest.raises(Invalid) as refused:
            read_place(text, others, position)
        assert refused.value.field == "cursor"
    for wrong in ("year", "year:down", ":asc", ""):
        with pytest.raises(Invalid) as refused:
            read_sorts(["a:asc", wrong])
        assert refused.value.field == "sort.1"
