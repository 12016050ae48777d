"""Evaluation of filters with the postings of the metadata.

Postings are inconclusive for some documents (`OPAQUE`), so every condition has two bounds: documents that surely match,
and documents that possibly match. Bounds combine as sets. At the end, documents that possibly but not surely match are
read. So a condition that could only remove a few candidates may be skipped.
"""

from __future__ import annotations

import operator
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from serving.corpora.filters import ID, All, AnyOf, Compares, Element, Exists, Filter, In, Not, with_id
from serving.corpora.indexes.exact import union
from serving.corpora.stores.fields import (
    DATES,
    LIST,
    OBJECT,
    OPAQUE,
    WHOLE,
    Numbers,
    Value,
    documents,
    numbers,
    posted_date,
    stored,
)
from serving.corpora.stores.records import blocks, marks
from serving.operations.json_body import is_unicode
from serving.operations.threads import check_cancelled

READ = 20
"""Number of postings whose lookup takes as long as reading one document."""
MANY = 20_000
"""Maximum number of postings that are counted before a lookup."""
MANY_OPTIONS = 10_000
"""Maximum options in one statement. SQLite's limit on values can be as low as 32,766."""
_NO_FIELD = -1
_SQL = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_OF_KIND = {"number": (None, "''"), "string": ("''", "x''"), "date": (f"x'{DATES.hex()}'", None)}
"""Lower and upper end of each kind in SQLite's order."""


def matching(reader: sqlite3.Connection, where: Filter) -> Numbers:
    """Return the sorted numbers of the documents for which `where.matches` is true.

    Call it in a transaction, because its reads must see one snapshot.
    """
    sure, possible = _Postings(reader).bounds(where)
    between = _numbers(reader, possible & ~sure)
    found = [number for number, id, metadata in documents(reader, between) if where.matches(with_id(metadata, id))]
    return union(_numbers(reader, sure), np.array(found, dtype=np.int64))


@dataclass(frozen=True)
class _Set:
    """A set of documents: the sorted `listed` ones or, with `others`, all documents except the listed ones."""

    listed: Numbers
    others: bool = False

    def __invert__(self) -> _Set:
        return replace(self, others=not self.others)

    def __and__(self, with_: _Set) -> _Set:
        match self.others, with_.others:
            case True, True:
                return _Set(union(self.listed, with_.listed), others=True)
            case True, False:
                return _Set(np.setdiff1d(with_.listed, self.listed, assume_unique=True))
            case False, True:
                return _Set(np.setdiff1d(self.listed, with_.listed, assume_unique=True))
            case _:
                return _Set(np.intersect1d(self.listed, with_.listed, assume_unique=True))

    def __or__(self, with_: _Set) -> _Set:
        return ~(~self & ~with_)


_AtPath = In | Compares | Exists | Element
_NONE = _Set(np.empty(0, dtype=np.int64))
_Bounds = tuple[_Set, _Set]
"""Documents that surely match, and the superset of those that possibly match."""


@dataclass(frozen=True)
class _Lookup:
    """A query for the postings of one field whose value meets an SQL condition."""

    field: int
    condition: str = "true"
    values: tuple[Value, ...] = ()

    @property
    def select(self) -> str:
        """SQL for the documents of these postings. A document appears once per posting."""
        return f"SELECT document AS number FROM postings WHERE field = {self.field} AND {self.condition}"


class _Postings:
    """Lookups of filter conditions in the postings."""

    def __init__(self, reader: sqlite3.Connection) -> None:
        self._reader = reader
        self._sizes: dict[int, int] = {}
        self._whole = self._set([_Lookup(WHOLE)])

    def bounds(self, where: Filter) -> _Bounds:
        """Return the documents that surely match `where`, and those that possibly match."""
        match where:
            case All(parts):
                return self._every(parts)
            case AnyOf(parts):
                return reduce(_either, map(self.bounds, parts))
            case Not(part):
                sure, possible = self.bounds(part)
                return ~possible, ~sure
            case In(path, options) if path == ID:
                found = self._with_ids(options)
                return found, found
            case Element(path, part):
                sure, possible = self._at_path(where)
                return sure, possible & self._with_element(path, part)
            case _:
                return self._at_path(where)

    def _every(self, parts: Sequence[Filter]) -> _Bounds:
        sure = possible = ~_NONE
        for part in sorted(parts, key=self._size):
            if not possible.others and len(possible.listed) * READ <= self._size(part):
                return _NONE, possible
            more_sure, more_possible = self.bounds(part)
            sure, possible = sure & more_sure, possible & more_possible
        return sure, possible

    def _with_element(self, path: str | None, part: Filter) -> _Set:
        """Return the documents that may have an element at `path` that matches `part`.

        Each condition of `part` is met by some element, but not necessarily by the same element.
        """
        match part:
            case All(parts):
                return reduce(operator.and_, (self._with_element(path, one) for one in parts))
            case AnyOf(parts):
                return reduce(operator.or_, (self._with_element(path, one) for one in parts))
            case In() | Compares() | Exists() if not _matches_absent(part):
                return self._at_path(replace(part, path=path if part.path is None else f"{path}.{part.path}"))[1]
            case _:
                return ~_NONE

    def _with_ids(self, ids: Sequence[str]) -> _Set:
        found = [
            numbers(self._reader, f"SELECT number FROM documents WHERE id IN ({marks(block)})", *block)
            for block in blocks(list(set(ids)), MANY_OPTIONS)
        ]
        return _Set(union(*found)) if found else _NONE

    def _at_path(self, where: _AtPath) -> _Bounds:
        field = self._field(where.path)
        sure_lookups, open_lookups = _lookups(where, field)
        sure = self._set(sure_lookups)
        possible = sure | self._set(open_lookups) | self._whole
        if _matches_absent(where):
            posted = self._set([_Lookup(field)])
            sure, possible = sure | ~(posted | self._whole), possible | ~posted
        return sure, possible

    def _size(self, where: Filter) -> int:
        """Return the number of postings of possible matches, up to `MANY`. `MANY` also means an unknown number."""
        if id(where) not in self._sizes:
            self._sizes[id(where)] = min(MANY, self._count(where))
        return self._sizes[id(where)]

    def _count(self, where: Filter) -> int:
        match where:
            case All(parts):
                return min(map(self._size, parts), default=MANY)
            case AnyOf(parts):
                return sum(map(self._size, parts))
            case In(path, options) if path == ID:
                return len(options)
            case In() | Compares() | Exists() | Element() if not _matches_absent(where):
                sure, opaque = _lookups(where, self._field(where.path))
                return sum(self._postings(lookup) for lookup in (*sure, *opaque))
            case _:
                return MANY

    def _postings(self, lookup: _Lookup) -> int:
        select = f"SELECT count(*) FROM ({lookup.select} LIMIT {MANY})"
        return int(self._reader.execute(select, lookup.values).fetchone()[0])

    def _set(self, lookups: Sequence[_Lookup]) -> _Set:
        found = [numbers(self._reader, lookup.select, *lookup.values) for lookup in lookups]
        return _Set(union(*found)) if found else _NONE

    def _field(self, path: str | None) -> int:
        """Return the number of a field.

        The check for a stop is here, because each condition calls this function.
        """
        check_cancelled()
        known = self._reader.execute("SELECT number FROM fields WHERE path = ?", (path,)).fetchone()
        return int(known[0]) if known else _NO_FIELD


def _either(one: _Bounds, other: _Bounds) -> _Bounds:
    return one[0] | other[0], one[1] | other[1]


def _matches_absent(where: Filter) -> bool:
    return isinstance(where, In) and any(option is None for option in where.options)


def _lookups(where: _AtPath, field: int) -> tuple[list[_Lookup], list[_Lookup]]:
    """Return lookups of the documents that surely match, and of the documents that must be read."""
    match where:
        case Exists():
            return [_Lookup(field)], []
        case In(options=options):
            wanted = {stored(option) for option in options}
            to_read = wanted & {OBJECT, LIST} | {OPAQUE}
            return _equal(field, wanted - to_read), _equal(field, to_read)
        case Element():
            return [], _equal(field, {LIST, OPAQUE})
        case Compares():
            opaque = _equal(field, {OPAQUE})
            bounds = [(_SQL[name], _bound(operand)) for name, operand in where.placed]
            known = [(sign, bound) for sign, bound in bounds if bound is not None]
            conditions = [f"value {sign} ?" for sign, _ in known]
            # SQLite seeks one bound per side, maybe the wider one. So a kind's bound is added only where there is none.
            for sign, end in zip((">", "<"), _OF_KIND[where.kind], strict=True):
                if end and not any(one.startswith(sign) for one, _ in known):
                    conditions.append(f"value {sign}{'=' if sign == '>' else ''} {end}")
            within = [_Lookup(field, " AND ".join(conditions), tuple(bound for _, bound in known))]
            return (within, opaque) if len(known) == len(bounds) else ([], [*within, *opaque])


def _bound(operand: int | float | str | bytes) -> Value | None:
    """Return an operand as SQLite compares it. None means that SQLite can't, so more postings must be read."""
    if isinstance(operand, bytes):
        return posted_date(operand)
    if isinstance(operand, str):
        return operand if is_unicode(operand) else None
    bound = stored(operand)
    return None if bound == OPAQUE else bound


def _equal(field: int, wanted: Collection[Value]) -> list[_Lookup]:
    values = tuple(wanted)
    return [_Lookup(field, f"value IN ({marks(block)})", tuple(block)) for block in blocks(values, MANY_OPTIONS)]


def _numbers(reader: sqlite3.Connection, chosen: _Set) -> Numbers:
    if not chosen.others:
        return chosen.listed
    everything = np.sort(numbers(reader, "SELECT number FROM documents"))
    return np.setdiff1d(everything, chosen.listed, assume_unique=True)
