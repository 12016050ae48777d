"""Readers of Parquet and Arrow files. They read the rows in batches."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import pyarrow
from pyarrow import compute, ipc, types
from pyarrow.parquet import ParquetFile

from serving.corpora.ingest.readers.unreadable import Record, Records, Unreadable, check_begins, damage

ROWS_AT_ONCE = 64
"""Number of rows that are converted in one step. Each row may have a megabyte of text."""
READ_AT_ONCE = 1 << 20
MAGIC = b"ARROW1"
PANDAS_INDEX = "__index_level_"
"""Prefix of the column names that pandas gives to an index without a name."""
EXACT_DIGITS = 15
"""Maximum number of digits of a decimal number that a conversion to float preserves."""
_SIMPLE = (
    *(types.is_null, types.is_boolean, types.is_integer, types.is_floating),
    *(types.is_decimal, types.is_date, types.is_time),
)


def parquet(file: BinaryIO, _: dict[str, Any]) -> Records:
    """Yield the rows of a Parquet file. Memory contains only a part of a row group at a time.

    Raises:
        Unreadable: the file is damaged or has another format, or a column can't be stored.
    """
    check_begins(file.read(4), (b"PAR1",), "Parquet")
    with damage("Parquet"):
        table = ParquetFile(pyarrow.memory_map(f"/dev/fd/{file.fileno()}"), buffer_size=READ_AT_ONCE, pre_buffer=False)
        columns = _columns(table.schema_arrow)
        yield from _rows(columns, table.iter_batches(ROWS_AT_ONCE, columns=[*columns], use_threads=False))


def arrow(file: BinaryIO, _: dict[str, Any]) -> Records:
    """Yield the rows of an Arrow file or stream. Memory contains only one record batch at a time.

    Raises:
        Unreadable: the file is damaged or has another format, or a column can't be stored.
    """
    is_file = file.read(len(MAGIC)) == MAGIC
    with damage("Arrow"):
        source = pyarrow.memory_map(f"/dev/fd/{file.fileno()}")
        reader = ipc.open_file(source) if is_file else ipc.open_stream(source)
        numbers = range(reader.num_record_batches) if is_file else ()
        yield from _rows(_columns(reader.schema), map(reader.get_batch, numbers) if is_file else reader)


class _Bad(NamedTuple):
    """Place of a value that can't be stored. `reason` is for the error."""

    reason: str


def _rows(columns: dict[str, pyarrow.DataType], batches: Iterable[pyarrow.RecordBatch]) -> Records:
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            part = batch.slice(start, ROWS_AT_ONCE)
            values = [_values(part[name], type) for name, type in columns.items()]
            for row in zip(*values, strict=True):
                number += 1
                fields = dict(zip(columns, row, strict=True))
                bad = next(((name, value) for name, value in fields.items() if isinstance(value, _Bad)), None)
                yield Record(f"row {number}", {}, bad[0], bad[1].reason) if bad else Record(f"row {number}", fields)


def _values(column: pyarrow.Array, type: pyarrow.DataType) -> list[Any]:
    """Convert the values of a column to types that JSON has. A value that can't be stored becomes a `_Bad`."""
    column.validate(full=True)
    if types.is_run_end_encoded(column.type):
        column = compute.run_end_decode(column)
    if column.type != type:
        column = column.cast(type, safe=False)
    values: list[Any] = []
    for value in column:
        try:
            values.append(_plain(value.as_py(maps_as_pydicts="strict")))
        except KeyError:
            values.append(_Bad("is a map with the same key twice"))
        except (ValueError, OverflowError) as error:
            values.append(_Bad(f"has a date outside the years 1 to 9999 ({error})"))
    return values


def _columns(schema: pyarrow.Schema) -> dict[str, pyarrow.DataType]:
    """Return, for each column to read, the Arrow type to which its values are converted (see `_stored_type`).

    Columns without a name, and columns of a pandas index without a name, are left out.

    Raises:
        Unreadable: two columns have the same name, or the values of a column can't be stored.
    """
    names = [name for name in schema.names if name and not name.startswith(PANDAS_INDEX)]
    _check_names(names, "columns")
    return {name: _stored_type(schema.field(name).type, name) for name in names}


def _check_names(names: Sequence[str], what: str, place: str = "") -> None:
    """Raise `Unreadable` if two columns, or two fields of the column `place`, have the same name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise Unreadable(f"two {what} have the name {twice[0]!r}", "Invalid", place)


def _stored_type(type: pyarrow.DataType, name: str) -> pyarrow.DataType:
    """Return the Arrow type nearest to `type` whose values Python and JSON can represent. Times lose their nanoseconds.

    Raises:
        Unreadable: values of this type can't be stored; `name` is the column in the error.
    """
    inner = partial(_stored_type, name=name)
    if isinstance(type, pyarrow.BaseExtensionType) and not isinstance(type, pyarrow.UuidType):
        stored = inner(type.storage_type)
    elif types.is_dictionary(type) or types.is_run_end_encoded(type):
        stored = inner(type.value_type)
    elif types.is_timestamp(type):
        # Casts from "s" and "ms" to "us" may overflow. An offset needs no time zone database; the name of a zone does.
        stored = pyarrow.timestamp("us" if type.unit == "ns" else type.unit, type.tz and "+00:00")
    elif types.is_time64(type):
        stored = pyarrow.time64("us")
    elif types.is_struct(type):
        _check_names([field.name for field in type], "fields", name)
        stored = pyarrow.struct([field.with_type(_stored_type(field.type, f"{name}.{field.name}")) for field in type])
    elif types.is_map(type) and _is_text(type.key_type):
        stored = pyarrow.map_(type.key_type, inner(type.item_type))
    elif types.is_fixed_size_list(type):
        stored = pyarrow.list_(inner(type.value_type), type.list_size)
    elif types.is_list(type) or types.is_large_list(type):
        stored = (pyarrow.list_ if types.is_list(type) else pyarrow.large_list)(inner(type.value_type))
    elif _is_text(type) or isinstance(type, pyarrow.UuidType) or any(is_one(type) for is_one in _SIMPLE):
        stored = type
    else:
        raise Unreadable(f"values of the type {type} can't be stored: leave out this column", "Invalid", name)
    return stored


def _is_text(type: pyarrow.DataType) -> bool:
    return any(is_one(type) for is_one in (types.is_string, types.is_large_string, types.is_string_view))


def _plain(value: Any) -> Any:
    """Convert a value to a type that JSON has."""
    match value:
        case dict():
            plain: Any = {name: _plain(one) for name, one in value.items()}
        case list():
            plain = [_plain(one) for one in value]
        case datetime() if value.tzinfo:
            plain = value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date() | time():
            plain = value.isoformat()
        case Decimal():
            plain = _number(value)
        case uuid.UUID():
            plain = str(value)
        case _:
            plain = value
    return plain


def _number(value: Decimal) -> int | float | str:
    """Convert a decimal number to an integer of 64 bits or a float. If digits would be lost, convert it to a string."""
    if value == value.to_integral_value():
        return int(value) if -(2**63) <= value < 2**64 else str(int(value))
    digits = len(value.normalize().as_tuple().digits)
    return float(value) if digits <= EXACT_DIGITS else str(value)
