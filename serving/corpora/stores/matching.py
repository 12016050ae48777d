"""Evaluation of filters with the postings of the metadata.

Postings are inconclusive for some documents (`OPAQUE`). Every condition therefore gives two sets: the documents that
certainly match, and those that possibly match. The sets of several conditions are combined. At the end, the documents
that possibly but not certainly match are read. If few candidates remain, further conditions are not looked up, because
reading the candidates is faster.
"""

from __future__ import annotations

import operator
import sqlite3
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson

from serving.corpora.filters import ID, All, AnyOf, Compares, Element, Exists, Filter, In, Near, Not, with_id
from serving.corpora.indexes.exact import union
from serving.corpora.stores import records
from serving.corpora.stores.fields import (
    BLOCK,
    DATES,
    LIST,
    OBJECT,
    OPAQUE,
    WHOLE,
    Numbers,
    Value,
    blocks,
    documents,
    numbers,
    posted_date,
    stored,
    text_after,
)
from serving.corpora.stores.records import marks
from serving.corpora.values import Keys
from serving.operations.json_body import is_unicode
from serving.operations.lru import Lru
from serving.operations.threads import check_cancelled

READ = 20
"""Number of postings that can be looked up in the time that it takes to read one document."""
MANY = 20_000
"""Maximum number of postings that are counted before a lookup."""
MANY_OPTIONS = 10_000
"""Maximum number of options in one statement. SQLite's limit on values can be as low as 32,766."""
_NO_FIELD = -1
_SQL = {
    "$gt": "value > ?",
    "$gte": "value >= ?",
    "$lt": "value < ?",
    "$lte": "value <= ?",
    "$contains": "instr(value, ?)",
}
_OF_KIND = {"number": (None, "''"), "string": ("''", "x''"), "date": (f"x'{DATES.hex()}'", None)}
"""Lower and upper limit of the postings of each kind, in SQLite's order."""
_AtPath = In | Compares | Exists | Element
T = TypeVar("T")
KEPT_BYTES = 64 << 20
"""Maximum bytes of the cached results of all corpora together. They are enough for 8 million keys."""
BESIDE_BYTES = 400
"""Bytes of a cache entry in addition to its keys and its filter's name, such as its version and the header of the
array."""
_Moment = tuple[str, int, int, int, int]
"""Version of a corpus: its generation, its number of documents, its number of documents that have not expired, the
greatest key ever assigned, and the number of patches. Additions raise the key, and removals lower the number of
documents."""


def matching(reader: sqlite3.Connection, where: Filter) -> Numbers:
    """Return the sorted numbers of the documents for which `where.matches` is true.

    Call this function in a transaction, because its reads must see one snapshot.
    """
    sure, possible = _Postings(reader).bounds(where)
    between = _numbers(reader, possible & ~sure)
    found = [number for number, id, metadata in documents(reader, between) if where.matches(with_id(metadata, id))]
    return union(_numbers(reader, sure), np.array(found, dtype=np.int64))


@dataclass(frozen=True)
class _Set:
    """A set of documents, given by document numbers.

    If `others` is False, the set has the documents in `listed`, which is sorted. If `others` is True, the set has all
    documents except those in `listed`.
    """

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


_NONE = _Set(np.empty(0, dtype=np.int64))
_Bounds = tuple[_Set, _Set]
"""The documents that certainly match, and the documents that possibly match. The second set includes the first."""


_Lookup = tuple[str, tuple[Value, ...]]
"""SQL that selects the document of each posting, with repetitions, and the values of the SQL's parameters."""


def _lookup(field: int, condition: str = "true", values: tuple[Value, ...] = ()) -> _Lookup:
    """Return SQL that selects the documents with a posting of `field` that meets `condition`.

    `condition` is an SQL condition on the posting's value. `values` are its parameters.
    """
    return f"SELECT document AS number FROM postings WHERE field = {field} AND {condition}", values


class _Postings:
    """Evaluation of filters by lookups in the postings of the metadata."""

    def __init__(self, reader: sqlite3.Connection) -> None:
        self._reader = reader
        self._sizes: dict[int, int] = {}
        self._whole = self._set([_lookup(WHOLE)])

    def bounds(self, where: Filter) -> _Bounds:
        """Return two sets: the documents that certainly match `where`, and all documents that possibly match.

        The second set includes the first.
        """
        match where:
            case All(parts):
                return self._every(parts)
            case AnyOf(parts):
                surely, possibly = zip(*map(self.bounds, parts), strict=True)
                return reduce(operator.or_, surely), reduce(operator.or_, possibly)
            case Not(part):
                sure, possible = self.bounds(part)
                return ~possible, ~sure
            case In(path, options) if path == ID:
                found = self._with_ids(options)
                return found, found
            case Near():
                sure, possible = _NONE, self.bounds(where.box)[1]
            case Element(path, part):
                sure, possible = self._at_path(where)
                possible &= self._with_element(path, part)
            case _:
                sure, possible = self._at_path(where)
        return sure, possible

    def _every(self, parts: Sequence[Filter]) -> _Bounds:
        sure = possible = ~_NONE
        for part in sorted(parts, key=self._size):
            if not possible.others and len(possible.listed) * READ <= self._size(part):
                return _NONE, possible
            more_sure, more_possible = self.bounds(part)
            sure, possible = sure & more_sure, possible & more_possible
        return sure, possible

    def _with_element(self, path: str | None, part: Filter) -> _Set:
        """Return the documents that may have a list at `path` with an element that matches `part`.

        Each condition of `part` is looked up separately. The result therefore includes documents in which different
        elements meet the conditions. A condition that can't be looked up excludes no document.
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
            posted = self._set([_lookup(field)])
            sure, possible = sure | ~(posted | self._whole), possible | ~posted
        return sure, possible

    def _size(self, where: Filter) -> int:
        """Return about how many postings a lookup of `where` reads, at most `MANY`.

        If the number is unknown, return `MANY`.
        """
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
            case Near():
                return self._size(where.box)
            case In() | Compares() | Exists() | Element() if not _matches_absent(where):
                sure, opaque = _lookups(where, self._field(where.path))
                return sum(self._postings(lookup) for lookup in (*sure, *opaque))
            case _:
                return MANY

    def _postings(self, lookup: _Lookup) -> int:
        select, values = lookup
        return int(self._reader.execute(f"SELECT count(*) FROM ({select} LIMIT {MANY})", values).fetchone()[0])

    def _set(self, lookups: Sequence[_Lookup]) -> _Set:
        found = [numbers(self._reader, select, *values) for select, values in lookups]
        return _Set(union(*found)) if found else _NONE

    def _field(self, path: str | None) -> int:
        """Return the field number of `path`, or `_NO_FIELD` if the table `fields` does not have the path.

        Each condition of a filter calls this method. The method therefore also ends the work if it was cancelled.

        Raises:
            Stopped: the work was cancelled.
        """
        check_cancelled()
        known = self._reader.execute("SELECT number FROM fields WHERE path = ?", (path,)).fetchone()
        return int(known[0]) if known else _NO_FIELD


def _matches_absent(where: Filter) -> bool:
    return isinstance(where, In) and any(option is None for option in where.options)


def _lookups(where: _AtPath, field: int) -> tuple[list[_Lookup], list[_Lookup]]:
    """Return two lists of lookups.

    The first list finds documents that certainly match. The second list finds documents that may match, so that their
    metadata must be read.
    """
    match where:
        case Exists():
            return [_lookup(field)], []
        case In(options=options):
            wanted = {stored(option) for option in options}
            to_read = wanted & {OBJECT, LIST} | {OPAQUE}
            return _equal(field, wanted - to_read), _equal(field, to_read)
        case Element():
            return [], _equal(field, {LIST, OPAQUE})
        case Compares():
            opaque = _equal(field, {OPAQUE})
            bounds = [(name, _bound(operand)) for name, operand in where.placed]
            known = [test for name, bound in bounds if bound is not None for test in _tests(name, bound)]
            conditions = [_SQL[name] for name, _ in known]
            # SQLite uses only one bound on each side to find rows, and may choose the wider one. The bound of the kind
            # is therefore added only to a side without a bound.
            for sign, end in zip((">", "<"), _OF_KIND[where.kind], strict=True):
                if end and not any(one.startswith(f"value {sign}") for one in conditions):
                    conditions.append(f"value {sign}{'=' if sign == '>' else ''} {end}")
            within = [_lookup(field, " AND ".join(conditions), tuple(bound for _, bound in known))]
            return (within, opaque) if all(bound is not None for _, bound in bounds) else ([], [*within, *opaque])


def _tests(name: str, bound: Value) -> list[tuple[str, Value]]:
    """Return the operators of `_SQL` that replace the operator `name`, each with its operand.

    `$startswith` becomes a range of strings. All other operators stay as they are.
    """
    if name != "$startswith":
        return [(name, bound)]
    end = text_after(str(bound))
    return [("$gte", bound), *([("$lt", end)] if end else [])]


def _bound(operand: int | float | str | bytes) -> Value | None:
    """Convert the operand of a comparison in a filter to a value that SQLite can compare.

    If SQLite can't compare the operand, return None. This comparison is then tested on the documents themselves, which
    are read if they meet all other comparisons of the same field.
    """
    if isinstance(operand, bytes):
        return posted_date(operand)
    if isinstance(operand, str):
        return operand if is_unicode(operand) else None
    bound = stored(operand)
    return None if bound == OPAQUE else bound


def _equal(field: int, wanted: Collection[Value]) -> list[_Lookup]:
    values = tuple(wanted)
    return [_lookup(field, f"value IN ({marks(block)})", tuple(block)) for block in blocks(values, MANY_OPTIONS)]


def _numbers(reader: sqlite3.Connection, chosen: _Set) -> Numbers:
    if not chosen.others:
        return chosen.listed
    everything = np.sort(numbers(reader, "SELECT number FROM documents"))
    return np.setdiff1d(everything, chosen.listed, assume_unique=True)


def keys_matching(reader: sqlite3.Connection, where: Filter) -> Keys:
    """Return the sorted keys of the passages whose documents match a filter."""
    numbers = matching(reader, where)
    documents, passages = reader.execute("SELECT documents, passages FROM corpora").fetchone()
    if documents == passages:
        return numbers  # a document's number is the key of its first passage
    if len(numbers) <= BLOCK:
        return np.array([row.key for row in records.passages_of(reader, numbers.tolist())], dtype=np.int64)
    # This is a single step of SQLite, so that other threads can run meanwhile.
    both = reader.execute("SELECT json_group_array(key), json_group_array(document) FROM passages").fetchone()
    keys, owners = (np.array(orjson.loads(one), dtype=np.int64) for one in both)
    return np.sort(keys[np.isin(owners, numbers)])


# Many searches repeat the filter of an earlier search, so the results of filters are cached.


class FilterCache:
    """Cache of the results of filters.

    A result's key consists of the corpus, the filter, and the name of the function that computed the result. A result
    is valid only for the version of the corpus from which it was computed.
    """

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self._kept: Lru[tuple[Path, str, str], tuple[_Moment, Any]] = Lru(max_bytes)
        self._lock = threading.Lock()

    def found(
        self, file: Path, reader: sqlite3.Connection, where: Filter, look_up: Callable[[sqlite3.Connection, Filter], T]
    ) -> T:
        """Return the result of `look_up(reader, where)`, from the cache if possible. A returned array is read-only.

        `file` is the path of the corpus, and `reader` is a connection to the corpus, in a read transaction. The cache
        tells functions apart by name, so each function that is passed as `look_up` needs a name of its own.
        """
        now = _moment(reader)
        key = file, look_up.__name__, where.name
        with self._lock:
            kept = self._kept.get(key)
        if kept and kept[0] == now:
            known: T = kept[1]
            return known
        found = look_up(reader, where)
        if isinstance(found, np.ndarray):
            found.flags.writeable = False
        size = found.nbytes if isinstance(found, np.ndarray) else sys.getsizeof(str(found))
        with self._lock:
            self._kept.put(key, (now, found), size + sys.getsizeof(key[2]) + BESIDE_BYTES)
        return found


def _moment(reader: sqlite3.Connection) -> _Moment:
    generation, documents, live, last, revision = reader.execute(
        """SELECT generation, (SELECT documents FROM main.corpora), documents,
        (SELECT max(seq) FROM sqlite_sequence WHERE name = 'passages'), revision FROM corpora"""
    ).fetchone()
    return generation, documents, live, last or 0, revision
