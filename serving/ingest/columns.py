"""The columns of a table: which is the text, which the id, and of what type the others are as metadata."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from serving.errors import Invalid
from serving.json_body import FITS, LEAST, MOST

_INTEGER = re.compile(r"[+-]?0*([0-9]+)")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DIGITS = 20
"""Of the largest integer that is kept."""
_BOOLEANS = {"true": True, "false": False}
_SHOWN = 40


class Columns(NamedTuple):
    """What a row's fields are."""

    width: int
    text: int
    id: int | None
    metadata: Sequence[tuple[int, str, Callable[[str], Any] | None]]
    """Place, name, and what reads a field that is no string."""

    @classmethod
    def of(cls, header: Sequence[str], text_column: str | None, id_column: str | None) -> Self:
        """By a header, in which a column may name its type, as in Meilisearch: `year:number`, `open:boolean`.

        `:string`, or none, is what it is anyway; any other ending belongs to the name. Text and id are strings.

        Raises:
            Invalid: a column is there twice, or one that is asked for is not.
        """
        columns = [_typed(name) for name in header]
        names = [name for name, _ in columns]
        there = ", ".join(map(repr, names))[:300]
        if len(set(names)) < len(names):
            raise Invalid(f"a column is there twice: {there}", field="line 1")
        text, id = text_column or "text", id_column or "id"
        if text not in names:
            raise Invalid(f"there is no column {text!r}, only {there}", field="text_column")
        if id_column is not None and id not in names:
            raise Invalid(f"there is no column {id!r}, only {there}", field="id_column")
        text_at = names.index(text)
        id_at = names.index(id) if id in names and (id_column or id != text) else None
        others = [(i, name, read) for i, (name, read) in enumerate(columns) if i not in (text_at, id_at)]
        return cls(len(header), text_at, id_at, others)

    def value(self, fields: Sequence[str]) -> dict[str, Any] | Invalid:
        """A row as the document that it should be, or what is wrong with it; an id that is empty is none."""
        if len(fields) != self.width:
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


def _typed(column: str) -> tuple[str, Callable[[str], Any] | None]:
    name, colon, kind = column.rpartition(":")
    return (name, _TYPES[kind]) if colon and kind in _TYPES else (column, None)


def _number(field: str) -> int | float | None:
    """None where the field is empty."""
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
    """None where the field is empty."""
    if not (given := field.strip().lower()):
        return None
    if given not in _BOOLEANS:
        raise ValueError("is neither true nor false")
    return _BOOLEANS[given]


_TYPES: dict[str, Callable[[str], Any] | None] = {"string": None, "number": _number, "boolean": _boolean}
