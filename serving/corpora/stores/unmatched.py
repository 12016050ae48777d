"""Warnings about conditions that no document can meet: no document has the field, or a value of the required type."""

from __future__ import annotations

import difflib
import sqlite3
from collections.abc import Iterable, Iterator, Set
from functools import cached_property
from itertools import islice

from serving.corpora.filters import ID, All, AnyOf, Compares, Element, Exists, Filter, In, Near, Not
from serving.corpora.stores.facets import KIND_OF, has, posted_kinds
from serving.corpora.stores.fields import DATES, MAX_PATH, OPAQUE, WHOLE
from serving.operations.threads import check_cancelled

MAX_WARNINGS = 10
COMPARED = 1000
"""Maximum number of field names with which an unknown name is compared. The fields that the corpus got first are
used."""
_SHOWN = 100
"""Maximum characters of a name in a warning."""
_A = {"object": "an object", "null": "null"}


def unmatched(reader: sqlite3.Connection, where: Filter) -> list[str]:
    """Return a warning for each condition that no document can meet, in the order of the filter.

    Equal warnings are returned once, and only the first `MAX_WARNINGS` are returned.

    A condition that is true for documents without the field gives no warning, for example `$exists: false` or equality
    with null. An empty `$in` gives no warning either. In an empty corpus, no document has any field, so all other
    conditions on fields give warnings.

    If a document has more than `MAX_FIELDS` fields, or a path longer than `MAX_PATH`, the metadata index has none of
    its fields. In a corpus with such a document there are no warnings, because the document may have any field.
    """
    return [] if has(reader, WHOLE, "true") else list(islice(_each_once(_Fields(reader).warnings(where)), MAX_WARNINGS))


def _each_once(warnings: Iterable[str]) -> Iterator[str]:
    """Yield each distinct warning once. A warning is computed only when the caller asks for it."""
    told = set[str]()
    for warning in warnings:
        if warning not in told:
            told.add(warning)
            yield warning


class _Fields:
    """Warnings about conditions on the fields of a corpus. The result of each lookup of a field is cached."""

    def __init__(self, reader: sqlite3.Connection) -> None:
        self._reader = reader
        self._kinds: dict[str, Set[str]] = {}
        self._meant: dict[str, str] = {}

    def warnings(self, where: Filter, parent: str | None = None) -> Iterator[str]:
        """Yield a warning for each condition in `where` that no document can meet.

        If `where` is a condition on the elements of a list, `parent` is the path of the list.
        """
        check_cancelled()
        match where:
            case All(parts) | AnyOf(parts):
                for part in parts:
                    yield from self.warnings(part, parent)
            case Not(part):
                if not isinstance(part, Exists):
                    yield from self.warnings(part, parent)
            case _ if (path := _joined(parent, where.path)) != ID:
                warning = self._warning(where, path)
                if warning:
                    yield warning
                elif isinstance(where, Element):
                    yield from self.warnings(where.part, path)

    def _warning(self, where: In | Compares | Exists | Element | Near, path: str) -> str | None:
        wanted = _wanted(where)
        held = self._held(path)
        if wanted is None or held & wanted:
            return None
        if not held:
            if path not in self._meant:
                self._meant[path] = self._nearest(path)
            return f"no document has the field {path[:_SHOWN]!r}.{self._meant[path]}"
        a = " or ".join(_A.get(kind, f"a {kind}") for kind in sorted(wanted - {"opaque"}))
        only = " and ".join(kind if kind == "null" else f"{kind}s" for kind in sorted(held))
        return f"no document has {a} in {path[:_SHOWN]!r}, only {only}.{_hint(where, path, wanted, held)}"

    def _held(self, path: str) -> Set[str]:
        if path not in self._kinds:
            known = self._reader.execute("SELECT number FROM fields WHERE path = ?", (path,)).fetchone()
            self._kinds[path] = self._kinds_in(known[0]) if known else set()
        return self._kinds[path]

    def _kinds_in(self, field: int) -> set[str]:
        others = (("opaque", "value = ?", OPAQUE), ("date", "value >= ?", DATES))
        return posted_kinds(self._reader, field) | {
            kind for kind, condition, value in others if has(self._reader, field, condition, value)
        }

    def _nearest(self, path: str) -> str:
        if path in ("id", "_id"):
            return f" Did you mean {ID!r}, the id of the document?"
        asked = path[:MAX_PATH].lower()
        short = [name for name in self._names if len(name) <= _SHOWN]  # a comparison takes time quadratic in the length
        close = difflib.get_close_matches(asked[:_SHOWN], short, n=1)
        close += [name for name in self._names if name.endswith(f".{asked}")]
        if close:
            return f" Did you mean {self._names[close[0]][:_SHOWN]!r}?"
        return "" if self._reader.execute("SELECT 1 FROM documents LIMIT 1").fetchone() else " The corpus is empty."

    @cached_property
    def _names(self) -> dict[str, str]:
        """Field names by their lower-case form."""
        held = "SELECT path FROM fields WHERE EXISTS (SELECT 1 FROM postings WHERE field = number) LIMIT ?"
        return {path.lower(): path for (path,) in self._reader.execute(held, (COMPARED,))}


def _joined(parent: str | None, path: str | None) -> str:
    return ".".join(part for part in (parent, path) if part is not None)


def _wanted(where: In | Compares | Exists | Element | Near) -> Set[str] | None:
    """Return the kinds of values that may match the condition `where`. For `$exists`, these are all kinds.

    Return None if `where` never gives a warning, even if no document has such a value. This is so if `where` accepts
    null, because documents without the field then match, or if it accepts no value at all (an empty `$in`).
    """
    match where:
        case Exists():
            return {*KIND_OF.values(), "opaque"}
        case Element():
            kinds = {"list"}
        case Near():
            kinds = {"object"}
        case Compares():
            kinds = {where.kind}
        case In(options=options):
            kinds = {KIND_OF[type(option)] for option in options}
    return None if not kinds or "null" in kinds else kinds | {"opaque"}


def _hint(where: Filter, path: str, wanted: Set[str], held: Set[str]) -> str:
    if isinstance(where, Element | Near):
        return ""
    if "string" in held and (typed := wanted & {"number", "boolean"}):
        header = repr(f"{path[:_SHOWN]}:{min(typed)}")
        return f" A CSV column has {min(typed)}s if its header is {header}, or with ?column_types=auto."
    if "string" in wanted and held & {"number", "boolean"}:
        return " Write numbers, true and false without quotes."
    return {
        "date": " Write a date as 2024-03-05 or 2024-03-05T08:30:00Z.",
        "list": " For one of several values use $in.",
        "object": " Operators begin with $, such as $gte.",
    }.get(min(wanted - {"opaque"}), "")
