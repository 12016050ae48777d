"""The columns of a table: the text, the id, and the metadata with their types."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self, get_args

import orjson

from serving.errors import Invalid
from serving.ingest.rows import Row, absent, listed
from serving.instants import instant
from serving.json_body import FITS, LEAST, MOST

_INTEGER = re.compile(r"[+-]?0*([0-9]+)")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DIGITS = 20
"""Digits of the largest integer that is kept."""
_BOOLEANS = {"true": True, "false": False}
_SHOWN = 40
ColumnType = Literal["auto", "string", "number", "boolean", "date"]
ColumnTypes = Literal["header", "auto"] | dict[str, ColumnType]
_WORDS: dict[str, ColumnTypes] = {"header": "header", "auto": "auto"}
JSON_HINT = (
    "the header looks like JSON: send it as application/json, or as application/x-ndjson where each line is a "
    "document, or name the file .json or .ndjson"
)


class Columns(NamedTuple):
    """The columns of a table, by their places in a row."""

    width: int
    text: int
    id: int | None
    text_name: str
    id_name: str
    metadata: Sequence[tuple[int, str, Callable[[str], Any] | None]]
    """Place and name of each column, and the function that reads its fields, None for strings."""

    @classmethod
    def of(
        cls,
        header: Sequence[str],
        text_column: str | None,
        id_column: str | None,
        *,
        types: Mapping[str, str],
        found: Mapping[str, str],
        place: str,
    ) -> Self:
        """Find the columns in a header, where a name may end in a type, as in Meilisearch: `year:number`, `day:date`.

        A type in `types` overrides it, except `auto`; a type in `found` is only used without it. The default type is
        string. An unknown suffix stays part of the name. Text and id are strings, and their columns are found in any
        case. White space around a name is removed. Columns without a name are left out: spreadsheets write some at the
        end, and pandas writes its index at the beginning.

        Raises:
            Invalid: a column occurs twice, or a requested one is missing.
        """
        columns = [_typed(name.strip()) for name in header]
        names = [name for name, _ in columns]
        named = [name for name in names if name]
        if len(set(named)) < len(named):
            raise Invalid(f"a column is there twice: {listed(names)}", field=place)
        text_at = _place(text_column or "text", names)
        if text_at is None:
            json = header[0].lstrip().startswith(("{", "["))
            raise Invalid(JSON_HINT if json else absent(text_column or "text", named, "column"), field="text_column")
        id_at = _place(id_column or "id", names)
        if id_column is not None and id_at is None:
            raise Invalid(absent(id_column, named, "column", "id_column"), field="id_column")
        if id_at == text_at and id_column is None:
            id_at = None
        others = [
            (i, name, _TYPES.get(types.get(name, ""), read) or _TYPES.get(found.get(name, "")))
            for i, (name, read) in enumerate(columns)
            if name and i not in (text_at, id_at)
        ]
        typed = [name for _, name, _ in others]
        if unknown := [name for name in types if name not in typed]:
            said = f"{unknown[0][:_SHOWN]!r} is no column of metadata, only {listed(typed) or 'none'}"
            raise Invalid(said, field="column_types")
        id_name = "id" if id_at is None else names[id_at]
        return cls(len(header), text_at, id_at, names[text_at], id_name, others)

    def value(self, fields: Sequence[str]) -> dict[str, Any] | Invalid:
        """Return a row as a raw document, or the error in it. An empty id counts as none."""
        if len(fields) < self.width or any(map(str.strip, fields[self.width :])):
            return Invalid(f"has {len(fields)} fields, the header {self.width}")
        metadata = {}
        for i, name, read in self.metadata:
            try:
                value = read(fields[i]) if read else fields[i]
            except ValueError as error:
                return Invalid(f"{fields[i][:_SHOWN]!r} {error}", field=name[:_SHOWN])
            if value is not None:
                metadata[name] = value
        id = None if self.id is None else fields[self.id] or None
        return {"id": id, "text": fields[self.text], "metadata": metadata}


def _place(wanted: str, names: Sequence[str]) -> int | None:
    """Return the place of the column of this name, or of the only one whose name differs just in case."""
    if wanted in names:
        return names.index(wanted)
    alike = [i for i, name in enumerate(names) if name.casefold() == wanted.strip().casefold()]
    return alike[0] if len(alike) == 1 else None


def _typed(column: str) -> tuple[str, Callable[[str], Any] | None]:
    name, colon, kind = column.rpartition(":")
    return (name.strip(), _TYPES[kind]) if colon and kind in _TYPES else (column, None)


def _number(field: str) -> int | float | None:
    """Read a number; None if the field is empty."""
    if not (given := field.strip()):
        return None
    if whole := _INTEGER.fullmatch(given):
        if len(whole[1]) > _DIGITS or not LEAST <= (number := int(given)) <= MOST:
            raise ValueError(f"is not {FITS}")
        return number
    if not _NUMBER.fullmatch(given):
        raise ValueError("is not a number")
    if not math.isfinite(value := float(given)):
        raise ValueError("is too large a number")
    return value


def _boolean(field: str) -> bool | None:
    """Read a boolean; None if the field is empty."""
    if not (given := field.strip().lower()):
        return None
    if given not in _BOOLEANS:
        raise ValueError("is neither true nor false")
    return _BOOLEANS[given]


def _date(field: str) -> str | None:
    """Return a date unchanged, for filters to compare as an instant; None if the field is empty."""
    if not (given := field.strip()):
        return None
    if instant(given) is None:
        raise ValueError("is not a date such as 2024-03-05 or 2024-03-05T08:30:00Z")
    return given


_TYPES: dict[str, Callable[[str], Any]] = {"number": _number, "boolean": _boolean, "date": _date, "string": str}
_PADDED = re.compile(r"\s*(\+|-?0[0-9])")
"""Prefixes of fields that are no plain numbers, such as telephone numbers and postal codes."""


def types_of(found: Iterable[Row]) -> dict[str, str]:
    """Return the type of each column: the first of `_TYPES` that fits all its fields, except empty ones."""
    possible = dict[str, list[str]]()
    for row in found:
        for name, value in row.value["metadata"].items() if isinstance(row.value, dict) else ():
            if isinstance(value, str) and value.strip():
                kinds = possible.setdefault(name, [*_TYPES])
                kinds[:] = [kind for kind in kinds if _is(kind, value)]
    return {name: kinds[0] for name, kinds in possible.items()}


def read_column_types(text: str) -> ColumnTypes:
    """Parse the requested column types: a word, in any case, or a JSON object with the types of some columns.

    Raises:
        Invalid: it is neither.
    """
    if word := _WORDS.get(text.lower()):
        return word
    try:
        types = orjson.loads(text)
    except orjson.JSONDecodeError:
        types = None
    if not isinstance(types, dict) or not all(kind in get_args(ColumnType) for kind in types.values()):
        kinds = ", ".join(get_args(ColumnType))
        said = f'must be header, auto, or a JSON object such as {{"year": "number"}}; types are {kinds}'
        raise Invalid(said, field="column_types")
    return types


def _is(kind: str, field: str) -> bool:
    try:
        _TYPES[kind](field)
    except ValueError:
        return False
    return kind != "number" or not _PADDED.match(field)
