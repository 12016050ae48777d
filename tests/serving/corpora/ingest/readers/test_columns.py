"""Tests of Parquet and Arrow: rows equal those of JSON lines, and other values are refused by name."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.ingest.readers import columns
from serving.corpora.ingest.readers.unreadable import Unreadable
from serving.errors import Invalid
from tests.conftest import soon
from tests.serving.corpora.ingest.readers import files
from tests.serving.corpora.ingest.reading import read, values

WRITE: dict[str, tuple[str, Callable[[pyarrow.Table], bytes]]] = {
    "Parquet": ("parquet", files.parquet),
    "Parquet in row groups": ("parquet", lambda table: files.parquet(table, row_group_size=2, use_dictionary=False)),
    "an Arrow file": ("arrow", files.arrow),
    "an Arrow stream": ("arrow", lambda table: files.arrow(table, stream=True)),
}
PLAIN = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
COLUMNS = {
    "text": st.none() | PLAIN,
    "id": st.none() | st.integers(-(2**63), 2**63 - 1),
    "title": st.none() | PLAIN,
    "open": st.none() | st.booleans(),
    "price": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "tags": st.none() | st.lists(st.none() | PLAIN, max_size=3),
    "metadata": st.none() | st.fixed_dictionaries({"year": st.none() | st.integers(0, 3000), "by": st.lists(PLAIN)}),
}
SCHEMA = pyarrow.schema(
    {
        "text": pyarrow.string(),
        "id": pyarrow.int64(),
        "title": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        "open": pyarrow.bool_(),
        "price": pyarrow.float64(),
        "tags": pyarrow.list_(pyarrow.large_string()),
        "metadata": pyarrow.struct({"year": pyarrow.int16(), "by": pyarrow.list_(pyarrow.string())}),
    }
)


def records(content: bytes, format: str = "parquet") -> list[dict[str, Any]]:
    """Read a file in this process."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        return [record.value for record in (columns.parquet if format == "parquet" else columns.arrow)(file, {})]


@pytest.mark.parametrize("writer", WRITE)
@given(rows=st.lists(st.fixed_dictionaries(COLUMNS), max_size=6))
def test_a_table_has_the_rows_that_json_lines_have(writer: str, rows: list[dict[str, Any]]) -> None:
    format, write = WRITE[writer]
    assert records(write(pyarrow.Table.from_pylist(rows, SCHEMA)), format) == rows


@pytest.mark.parametrize("writer", soon(WRITE, "Parquet"))
def test_a_table_has_the_documents_that_json_lines_have(writer: str) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "one", "id": 7, "title": "a", "metadata": {"year": 1999, "by": ["x"]}},
        {"text": None, "tags": ["a", None]},
        {"text": "é", "open": False, "price": 2.5, "title": ""},
    ]
    format, write = WRITE[writer]
    full = [dict.fromkeys(COLUMNS) | row for row in rows]
    lines = "".join(json.dumps(row) + "\n" for row in full).encode()
    asked: list[dict[str, Any]] = [{}, {"text_column": "title", "id_column": "text"}, {"text_column": "missing"}]
    for options in asked:
        found = read(write(pyarrow.Table.from_pylist(full, SCHEMA)), format, **options)
        alike = read(lines, **options)
        assert list(map(str, values(found))) == list(map(str, values(alike)))
        assert [row.text_field for row in found] == [row.text_field for row in alike]
        assert [row.place for row in found] == ["row 1", "row 2", "row 3"]


UTC = dt.UTC
NOON = dt.datetime(2024, 3, 5, 12, 30)
TYPED: list[tuple[pyarrow.DataType, Any, Any]] = [
    (pyarrow.date32(), dt.date(2024, 3, 5), "2024-03-05"),
    (pyarrow.timestamp("ns"), NOON, "2024-03-05T12:30:00"),
    (pyarrow.timestamp("ms", "Europe/Berlin"), NOON.replace(tzinfo=UTC), "2024-03-05T12:30:00Z"),
    (pyarrow.timestamp("us", "Europe/Berlin"), dt.datetime(9999, 12, 31, 23, tzinfo=UTC), "9999-12-31T23:00:00Z"),
    (pyarrow.time64("ns"), dt.time(8, 30), "08:30:00"),
    (pyarrow.decimal128(10, 2), Decimal("12.50"), 12.5),
    (pyarrow.decimal128(10, 2), Decimal("3.00"), 3),
    (pyarrow.decimal128(38, 20), Decimal("0.12345678901234567890"), "0.12345678901234567890"),
    (pyarrow.decimal128(38, 2), Decimal("12345678901234567.00"), 12345678901234567),
    (pyarrow.decimal128(38, 0), Decimal(2**64 - 1), 2**64 - 1),
    (pyarrow.decimal128(38, 0), Decimal(2**64), str(2**64)),
    (pyarrow.decimal128(38, 1), Decimal(-(2**63) - 1), str(-(2**63) - 1)),
    (pyarrow.uint64(), 2**64 - 1, 2**64 - 1),
    (pyarrow.float16(), 1.5, 1.5),
    (pyarrow.null(), None, None),
    (pyarrow.map_(pyarrow.string(), pyarrow.timestamp("us")), [("k", NOON)], {"k": "2024-03-05T12:30:00"}),
    (pyarrow.list_(pyarrow.timestamp("ns")), [NOON, None], ["2024-03-05T12:30:00", None]),
    (
        pyarrow.struct({"a": pyarrow.struct({"b": pyarrow.date32()})}),
        {"a": {"b": NOON.date()}},
        {"a": {"b": "2024-03-05"}},
    ),
]


@pytest.mark.parametrize(("type", "value", "plain"), TYPED, ids=lambda one: str(one)[:40])
def test_values_that_json_has_not(type: pyarrow.DataType, value: Any, plain: Any) -> None:
    table = pyarrow.table({"text": ["a"], "x": pyarrow.array([value], type)})
    assert records(files.parquet(table)) == records(files.arrow(table), "arrow") == [{"text": "a", "x": plain}]


FAR = [pyarrow.date32(), *(pyarrow.timestamp(unit, zone) for unit in ("s", "ms", "us") for zone in (None, "UTC"))]


@pytest.mark.parametrize("type", FAR, ids=str)
def test_a_date_outside_the_calendar_makes_only_its_row_invalid(type: pyarrow.DataType) -> None:
    days = type == pyarrow.date32()
    far = pyarrow.array([0, 2**31 - 1 if days else 2**62], pyarrow.int32() if days else pyarrow.int64()).cast(type)
    good, bad = read(files.arrow(pyarrow.table({"text": ["a", "b"], "x": far})), "arrow")
    assert (good.place, good.value["text"], bad.place) == ("row 1", "a", "row 2")
    assert isinstance(bad.value, Invalid)
    assert bad.value.field == "x" and "has a date outside the years 1 to 9999" in bad.value.message


def test_zones_need_no_database() -> None:
    typed = pyarrow.array([0], pyarrow.timestamp("us", "Nowhere/Unknown"))
    table = pyarrow.table({"text": ["a"], "x": typed})
    assert records(files.arrow(table), "arrow") == [{"text": "a", "x": "1970-01-01T00:00:00Z"}]


def test_runs_of_equal_values_are_decoded() -> None:
    encoded = pyarrow.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"])
    assert records(files.arrow(pyarrow.table({"text": encoded})), "arrow") == [{"text": x} for x in ("a", "a", "b")]


def test_fields_of_an_object_have_different_names() -> None:
    twice = pyarrow.StructArray.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["y", "y"])
    with pytest.raises(Unreadable, match="two fields have the name 'y'"):
        records(files.arrow(pyarrow.table({"text": ["a"], "x": twice})), "arrow")


def test_ids_of_other_libraries() -> None:
    id = uuid.uuid4()
    table = pyarrow.table({"text": ["a"], "id": pyarrow.array([id.bytes], pyarrow.uuid())})
    assert records(files.arrow(table), "arrow") == [{"text": "a", "id": str(id)}]


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (pyarrow.binary(), b"x"),
        (pyarrow.list_(pyarrow.binary()), [b"x"]),
        (pyarrow.duration("s"), dt.timedelta(1)),
        (pyarrow.map_(pyarrow.int64(), pyarrow.string()), [(1, "a")]),
    ],
)
def test_values_that_can_not_be_stored_are_refused_by_the_name_of_their_column(
    type: pyarrow.DataType, value: Any
) -> None:
    table = pyarrow.table({"text": ["a"], "x": pyarrow.array([value], type)})
    with pytest.raises(Unreadable, match=r"values of the type .* can't be stored") as refused:
        records(files.arrow(table), "arrow")
    assert refused.value.place == "x"


def test_numbers_that_are_none_are_refused_by_row_and_column() -> None:
    (row,) = read(files.parquet(pyarrow.table({"text": ["a"], "price": [float("nan")]})), "parquet")
    assert (row.place, str(row.value)) == ("row 1", "price: numbers must be finite")


def test_the_index_of_pandas_is_no_metadata() -> None:
    table = pyarrow.table({"text": ["a"], "__index_level_0__": [7]})
    assert records(files.parquet(table)) == [{"text": "a"}]


def test_a_column_that_is_there_twice() -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, ["text", "text"])
    with pytest.raises(Unreadable, match="two columns have the name 'text'"):
        records(files.arrow(table), "arrow")


TABLE = pyarrow.table({"text": [f"text {i}" for i in range(20)], "n": range(20)})


@pytest.mark.parametrize("writer", WRITE)
def test_a_file_that_is_cut_short_is_told_in_one_line(writer: str) -> None:
    format, write = WRITE[writer]
    content = write(TABLE)
    whole = records(content, format)
    for size in range(0, len(content), max(1, len(content) // 60)):
        try:
            found = records(content[:size], format)
        except Unreadable as error:
            assert "\n" not in str(error)
        else:  # Only the end mark of a stream may be missing.
            assert found == whole[: len(found)] and writer == "an Arrow stream"


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("content", [b"", b"hello", b'{"text": "a"}\n', b"PK\x03\x04" + b"x" * 500])
def test_a_file_that_is_not_what_its_name_says(format: str, content: bytes) -> None:
    with pytest.raises(Unreadable):
        records(content, format)


def test_files_are_read_bit_by_bit(tmp_path: Path) -> None:
    table = pyarrow.table({"text": ["word " * 200 + str(i) for i in range(40_000)]})
    file = tmp_path / "large.parquet"
    file.write_bytes(files.parquet(table, row_group_size=40_000))
    del table
    before = pyarrow.total_allocated_bytes()
    with file.open("rb") as opened:
        held = max(pyarrow.total_allocated_bytes() - before for _ in columns.parquet(opened, {}))
    assert held < 16_000_000, "of 40 MB of texts in one row group"
