"""Reads of a corpus file, inside the caller's transaction."""

from __future__ import annotations

import difflib
import sqlite3
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import orjson

from models.runtimes.base import Floats
from serving.corpora.filters import ID, All, AnyOf, Compares, Element, Exists, Filter, In, Not
from serving.corpora.ports import Chunking, Corpus, Keys, KnownText, Size, Stemming
from serving.corpora.stores import records
from serving.corpora.stores.connections import OpenFiles
from serving.corpora.stores.facets import KIND_OF, posted_kinds
from serving.corpora.stores.fields import DATES, MAX_PATH, OPAQUE, WHOLE, Numbers
from serving.corpora.stores.matching import matching
from serving.corpora.stores.records import BLOCK, PassageRow, blocks, marks
from serving.operations.files import DamageError
from serving.operations.lru import Lru
from serving.operations.threads import check_cancelled

CORPUS = "name, description, recall_target, created, fingerprint, dim, stemming, generation"


def corpus(reader: sqlite3.Connection) -> Corpus:
    """Return the corpus in the file.

    Raises:
        DamageError: the file has no corpus, or the corpus's stemming is unknown.
    """
    row = reader.execute(f"SELECT {CORPUS} FROM corpora").fetchone()
    if row is None:
        raise DamageError("holds no corpus")
    found = Corpus(*row)
    if found.wanted_stemming not in get_args(Stemming):
        raise DamageError(f"has a corpus of unknown stemming: {found.stemming!r}")
    return found


def size(reader: sqlite3.Connection) -> Size:
    """Return the number of documents, bytes of the database without its log, and passages."""
    counted = "SELECT documents, page_count * page_size, passages FROM corpora, pragma_page_count, pragma_page_size"
    return Size(*reader.execute(counted).fetchone())


def keys_matching(reader: sqlite3.Connection, where: Filter) -> Keys:
    """Implement `Store.matching`."""
    numbers = matching(reader, where)
    documents, passages = reader.execute("SELECT documents, passages FROM corpora").fetchone()
    if documents == passages:
        return numbers  # a document's number is the key of its first passage
    if len(numbers) <= BLOCK:
        return np.array([row.key for row in records.passages_of(reader, numbers.tolist())], dtype=np.int64)
    # This is one SQLite step, so that other threads can run.
    both = reader.execute("SELECT json_group_array(key), json_group_array(document) FROM passages").fetchone()
    keys, owners = (np.array(orjson.loads(one), dtype=np.int64) for one in both)
    return np.sort(keys[np.isin(owners, numbers)])


def embedded(reader: sqlite3.Connection, texts: Sequence[str], chunking: Chunking | None) -> list[KnownText | None]:
    """Implement `Store.embedded`."""
    hashes = [records.content_hash(text, chunking) for text in texts]
    numbers: dict[bytes, int] = {}
    found: dict[int, KnownText] = {}
    for block in blocks(hashes):
        numbers.update(reader.execute(f"SELECT hash, number FROM documents WHERE hash IN ({marks(block)})", block))
    for some in blocks(sorted(set(numbers.values()))):
        found.update(_held(reader, some))
    return [found[numbers[one]] if one in numbers else None for one in hashes]


def _held(reader: sqlite3.Connection, numbers: Sequence[int]) -> Iterator[tuple[int, KnownText]]:
    passages: dict[int, list[PassageRow]] = defaultdict(list)
    for row in records.passages_of(reader, numbers):
        passages[row.document].append(row)
    rows: dict[int, Floats] = {}
    for block in blocks([row.key for own in passages.values() for row in own]):
        keys, matrix = records.of(reader, block)
        rows.update(zip(keys.tolist(), matrix, strict=True))
    for number, own in passages.items():
        spans = [span for row in own if (span := row.span())]
        yield number, KnownText(spans or None, np.stack([rows[row.key] for row in own]))


# Warnings about filter conditions that no document can meet, because the field is missing or has other types.

MAX_WARNINGS = 10
COMPARED = 1000
"""Maximum number of field names that an unknown name is compared with. The oldest fields are used."""
_SHOWN = 100
"""Maximum characters of a name in a warning."""
_A = {"object": "an object", "null": "null"}


def unmatched(reader: sqlite3.Connection, where: Filter) -> list[str]:
    """Return a warning for each condition that no document can meet, in the order of the filter.

    `$exists` and null cause no warning if the field is missing. If a document is opaque as a whole, there are no
    warnings, because that document may have any field. In an empty corpus every field is missing.
    """
    ((opaque,),) = reader.execute("SELECT EXISTS (SELECT 1 FROM postings WHERE field = ?)", (WHOLE,))
    return [] if opaque else list(islice(_each_once(_Fields(reader).warnings(where)), MAX_WARNINGS))


def _each_once(warnings: Iterable[str]) -> Iterator[str]:
    """Yield each warning once, lazily, so that the search stops when enough warnings are found."""
    told = set[str]()
    for warning in warnings:
        if warning not in told:
            told.add(warning)
            yield warning


class _Fields:
    """The fields of a corpus, each looked up once."""

    def __init__(self, reader: sqlite3.Connection) -> None:
        self._reader = reader
        self._kinds: dict[str, Set[str]] = {}
        self._meant: dict[str, str] = {}

    def warnings(self, where: Filter, parent: str | None = None) -> Iterator[str]:
        """Yield warnings about `where`. `parent` is the path of the list whose elements `where` tests."""
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

    def _warning(self, where: In | Compares | Exists | Element, path: str) -> str | None:
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
        kinds = posted_kinds(self._reader, field)
        for kind, condition, value in (("opaque", "value = ?", OPAQUE), ("date", "value >= ?", DATES)):
            select = f"SELECT 1 FROM postings WHERE field = ? AND {condition} LIMIT 1"
            if self._reader.execute(select, (field, value)).fetchone():
                kinds.add(kind)
        return kinds

    def _nearest(self, path: str) -> str:
        if path in ("id", "_id"):
            return f" Did you mean {ID!r}, the id of the document?"
        asked = path[:MAX_PATH].lower()
        close = difflib.get_close_matches(asked[:_SHOWN], self._short_names, n=1)
        close += [name for name in self._names if name.endswith(f".{asked}")]
        if close:
            return f" Did you mean {self._names[close[0]][:_SHOWN]!r}?"
        return "" if self._reader.execute("SELECT 1 FROM documents LIMIT 1").fetchone() else " The corpus is empty."

    @cached_property
    def _short_names(self) -> list[str]:
        """Short field names. A comparison takes time quadratic in the length, so long names are left out."""
        return [name for name in self._names if len(name) <= _SHOWN]

    @cached_property
    def _names(self) -> dict[str, str]:
        """Field names by their lower-case form."""
        held = "SELECT path FROM fields WHERE EXISTS (SELECT 1 FROM postings WHERE field = number) LIMIT ?"
        return {path.lower(): path for (path,) in self._reader.execute(held, (COMPARED,))}


def _joined(parent: str | None, path: str | None) -> str:
    return ".".join(part for part in (parent, path) if part is not None)


def _wanted(where: In | Compares | Exists | Element) -> Set[str] | None:
    """Return the kinds of values that may match. For `$exists` this is any kind.

    None means that a missing field matches, or that no value can match.
    """
    match where:
        case Exists():
            return {*KIND_OF.values()}
        case Element():
            kinds = {"list"}
        case Compares():
            kinds = {where.kind}
        case In(options=options):
            kinds = {KIND_OF[type(option)] for option in options}
    return None if not kinds or "null" in kinds else kinds | {"opaque"}


def _hint(where: Filter, path: str, wanted: Set[str], held: Set[str]) -> str:
    if isinstance(where, Element):
        return ""
    if "string" in held and (typed := wanted & {"number", "boolean"}):
        header = repr(f"{path[:_SHOWN]}:{min(typed)}")
        return f" A CSV column has {min(typed)}s if its header is {header}, or with ?column_types=auto."
    if "string" in wanted and held & {"number", "boolean"}:
        return " Numbers, true and false stand without quotes."
    return {
        "date": " Write a date as 2024-03-05 or 2024-03-05T08:30:00Z.",
        "list": " For one of several values use $in.",
        "object": " Operators begin with $, such as $gte.",
    }.get(min(wanted - {"opaque"}), "")


# Cache of filter results. The same filter is often searched with again.

T = TypeVar("T")
KEPT_BYTES = 64 << 20
"""Maximum bytes for all corpora together: 8 million keys."""
BESIDE_BYTES = 400
"""Bytes of an entry besides its keys and its filter's name: the version and the array's header."""
_Moment = tuple[str, int, int]
"""Version of a corpus: its generation, its number of documents, and the greatest key ever assigned. Additions raise the
key, and other changes lower the number of documents."""


class FilterCache:
    """Cache of results by corpus and filter, each valid for one version of the corpus.

    Call its methods in a transaction that reads `file`.
    """

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self._kept: Lru[tuple[Path, str, str], tuple[_Moment, Any]] = Lru(max_bytes)
        self._lock = threading.Lock()

    def keys(self, file: Path, reader: sqlite3.Connection, where: Filter) -> Keys:
        return self._looked_up("keys", file, reader, where, keys_matching)

    def numbers(self, file: Path, reader: sqlite3.Connection, where: Filter) -> Numbers:
        """Return the sorted numbers of the documents that match."""
        return self._looked_up("numbers", file, reader, where, matching)

    def unmatched(self, file: Path, reader: sqlite3.Connection, where: Filter) -> list[str]:
        return self._looked_up("unmatched", file, reader, where, unmatched)

    def _looked_up(
        self,
        what: str,
        file: Path,
        reader: sqlite3.Connection,
        where: Filter,
        look_up: Callable[[sqlite3.Connection, Filter], T],
    ) -> T:
        now = _moment(reader)
        key = file, what, where.name
        with self._lock:
            kept = self._kept.get(key)
        if kept and kept[0] == now:
            found: T = kept[1]
            return found
        found = look_up(reader, where)
        if isinstance(found, np.ndarray):
            found.flags.writeable = False
        size = found.nbytes if isinstance(found, np.ndarray) else sys.getsizeof(str(found))
        with self._lock:
            self._kept.put(key, (now, found), size + sys.getsizeof(key[2]) + BESIDE_BYTES)
        return found


def _moment(reader: sqlite3.Connection) -> _Moment:
    generation, documents, last = reader.execute(
        "SELECT generation, documents, (SELECT max(seq) FROM sqlite_sequence WHERE name = 'passages') FROM corpora"
    ).fetchone()
    return generation, documents, last or 0


# Resources that all files of a store share.


@dataclass(frozen=True)
class Shared:
    """The limit on open files and the cache of filter results, for all corpora together."""

    open_files: OpenFiles = field(default_factory=OpenFiles)
    filter_cache: FilterCache = field(default_factory=FilterCache)
