"""One corpus in one SQLite file, with a write-ahead log and synchronous=FULL.

Each call of `CorpusFile.write` applies all its writes in one transaction.
"""

from __future__ import annotations

import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from models.bundle.disk import fsync
from models.runtimes.base import Floats
from serving.corpora.arranging import first_sorted
from serving.corpora.filters import Filter
from serving.corpora.ports import RESERVED_BYTES, Ranking, Stop, never
from serving.corpora.stores import facets, fields, matching, records, words, writing
from serving.corpora.stores.connections import Connections, OpenFiles, stopping
from serving.corpora.stores.fields import blocks, documents
from serving.corpora.stores.foreign import check_values
from serving.corpora.stores.matching import FilterCache
from serving.corpora.stores.migrations import check_ours, check_schema, mark, migrate, verify
from serving.corpora.stores.queries import expanded, parse
from serving.corpora.stores.records import Table
from serving.corpora.stores.unmatched import unmatched
from serving.corpora.stores.writing import attempt, check_bound, create, set_words, stem
from serving.corpora.values import (
    NO_OPTIONS,
    NO_SETTINGS,
    Blocks,
    Change,
    Chunking,
    Corpus,
    Counts,
    Document,
    Expiry,
    Facets,
    Keys,
    KnownText,
    Map,
    Page,
    Passage,
    Place,
    Removal,
    Size,
    Sort,
    Span,
    WordOptions,
    Write,
)
from serving.errors import Damaged, InsufficientStorage, NotFound, ServiceError, Unhealthy
from serving.operations.bounds import Bounds
from serving.operations.clock import now
from serving.operations.failpoints import reach
from serving.operations.files import UNREADABLE

T = TypeVar("T")
_STEP = 1024
"""Number of pages that are returned to the disk in one step. Other threads can write between two steps."""
_PART = 0.25
"""Share of unused pages in a file. From this share on, `give_back` returns the unused pages to the disk, even if they
have fewer bytes than its argument `least`."""


@dataclass(frozen=True)
class Shared:
    """Resources that all corpora share: the limit on open files, and the cache of filter results."""

    open_files: OpenFiles = field(default_factory=OpenFiles)
    filter_cache: FilterCache = field(default_factory=FilterCache)


class CorpusFile(Connections):
    """The open file of one corpus, with the methods of `Store`.

    If `new` is True, the file is made here, and has no corpus until `create` is called. If `foreign` bounds are given,
    the file comes from another machine, and is first checked against these bounds. If the function `stop` returns True,
    running work is interrupted.

    Raises:
        StoreError: the file does not belong to this application, has a later format, or exceeds the `foreign` bounds.
        ServiceError: the file is not `new` but contains no corpus, or it can't be read or written; see
            `Connections.disk_errors`.
    """

    def __init__(
        self,
        path: Path,
        synchronous: str = "FULL",
        *,
        new: bool = False,
        foreign: Bounds | None = None,
        stop: Stop | None = None,
        shared: Shared | None = None,
    ) -> None:
        shared = shared or Shared()
        super().__init__(path, synchronous, stop, shared.open_files)
        self._filter_cache = shared.filter_cache
        self._results: dict[Callable[[sqlite3.Connection], Any], tuple[int, Any]] = {}
        """Results of reads, each with the number of writes before the read."""
        try:
            with self.disk_errors():
                if new:
                    mark(path)
                else:
                    check_ours(path)
                    if foreign:
                        check_schema(path)
                        check_values(path, foreign, stop or never)
            with self.writing() as writer:
                migrate(writer, path)
                if not new:
                    records.corpus(writer)
                soonest = records.soonest_expiry(writer)
            self._results[records.soonest_expiry] = self.writes, soonest
        except BaseException:
            self.close()
            raise

    def create(self, corpus: Corpus) -> None:
        with self.writing() as writer:
            create(writer, corpus)

    def call(self, name: str, *, former: str | None) -> None:
        """Store `name` as the name of the corpus.

        During a rename, the file on disk still has the old name, and `former` is this old name. Otherwise, `former` is
        None.
        """
        with self.writing() as writer:
            writer.execute("UPDATE corpora SET name = ?, former = ?", (name, former))

    def take_back(self, name: str) -> bool:
        """Undo a rename from `name` that was interrupted, and return whether there was such a rename."""
        with self.writing() as writer:
            undone = writer.execute("UPDATE corpora SET name = former, former = NULL WHERE former = ?", (name,))
            return undone.rowcount > 0

    def rename(self, name: str) -> None:
        """Rename a corpus that is being restored, and delete its records of uploads.

        The corpus gets a new `Corpus.generation`. An earlier corpus of this name may have used the same keys for other
        passages, so references to its keys must become invalid.
        """
        with self.writing() as writer:
            writer.execute("DELETE FROM uploads")
            writer.execute("UPDATE corpora SET name = ?, former = NULL, generation = ?", (name, secrets.token_hex(8)))

    def describe(self, wanted: Corpus) -> None:
        settings = wanted.description, wanted.recall_target, wanted.stemming, wanted.fingerprint
        if settings == (None, None, None, None) and wanted.words == NO_SETTINGS:
            return
        with self.writing() as writer:
            if wanted.stemming is not None:
                stem(writer, wanted.stemming)
            if wanted.fingerprint is not None:
                check_bound(records.corpus(writer), wanted.fingerprint, wanted.dim)
                bind = "UPDATE corpora SET fingerprint = ?, dim = coalesce(?, dim)"
                writer.execute(bind, (wanted.fingerprint, wanted.dim))
            set_words(writer, wanted.words)
            writer.execute(
                "UPDATE corpora SET description = coalesce(?, description), recall_target = coalesce(?, recall_target)",
                (wanted.description, wanted.recall_target),
            )

    def corpus(self) -> Corpus:
        return self._cached(records.described)[0]

    def described(self) -> tuple[Corpus, Size]:
        """Return the corpus, and its size without expired documents."""
        if not self._has_expired():
            return self._cached(records.described)
        with self._live() as reader:
            return records.described(reader)

    def size(self) -> Size:
        return self._cached(records.described)[1]

    def _cached(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of `read`, which is cached until the next write.

        Because of the cache, a list of all corpora can be made without opening their files.
        """
        self.check_open()
        writes, kept = self.writes, self._results.get(read)
        if kept is None or kept[0] != writes:
            with self.reading() as reader:
                self._results[read] = kept = writes, read(reader)
        found: T = kept[1]
        return found

    def _has_expired(self) -> bool:
        """Return whether a document has expired and is not deleted yet."""
        soonest = self._cached(records.soonest_expiry)
        return soonest is not None and soonest <= now()

    @contextmanager
    def _live(self) -> Iterator[sqlite3.Connection]:
        """Open a read transaction that does not see expired documents."""
        has_expired = self._has_expired()
        with self.reading() as reader:
            if has_expired:
                records.hide_expired(reader)
            yield reader

    def write(self, writes: Sequence[Write]) -> list[Change | ServiceError]:
        if self.damage:  # the documents would be lost when a snapshot replaces the file
            raise Damaged(self.damage)
        with self.writing() as writer:
            full = self._full()
            removing = Removal | Expiry
            return [full if full and not isinstance(write, removing) else attempt(writer, write) for write in writes]

    def _full(self) -> InsufficientStorage | None:
        """Return the error for writes that add data, or None if the disk has at least `RESERVED_BYTES` free."""
        if shutil.disk_usage(self.path.parent).free >= RESERVED_BYTES:
            return None
        return InsufficientStorage(
            f"{self.path.name}: the disk is full: its last {RESERVED_BYTES >> 20} MB are reserved for deletions"
        )

    def accepted(self) -> list[str]:
        with self.reading() as reader:
            return writing.accepted(reader)

    def accept(self, job: str) -> None:
        with self.writing() as writer:
            writing.accept(writer, job)

    def release(self, job: str) -> None:
        with self.writing() as writer:
            writing.release(writer, job)

    def embedded(self, texts: Sequence[str], chunking: Chunking | None, fingerprint: str) -> list[KnownText | None]:
        with self.reading() as reader:
            if records.corpus(reader).fingerprint != fingerprint:
                return [None] * len(texts)
            return records.embedded(reader, texts, chunking)

    def document(self, document: str) -> Document:
        with self._live() as reader:
            found = records.document(reader, document)
        if found is None:
            raise NotFound(f"corpus {self.path.stem!r} has no document {document!r}")
        return found

    def passages(self, keys: Sequence[int]) -> dict[int, Passage]:
        with self._live() as reader:
            return records.passages(reader, keys)

    def owners(self, keys: Sequence[int]) -> dict[int, Document]:
        with self._live() as reader:
            return records.owners(reader, keys)

    def page(self, after: int, limit: int, where: Filter | None = None) -> Page:
        with self._live() as reader:
            among = None if where is None else self._filter_cache.found(self.path, reader, where, matching.matching)
            return records.page(reader, after, limit, among)

    def sorted_page(self, orders: Sequence[Sort], after: Place | None, limit: int, where: Filter | None = None) -> Page:
        with self._live() as reader:
            if where is None:
                among = fields.numbers(reader, "SELECT number FROM documents ORDER BY number")
            else:
                among = self._filter_cache.found(self.path, reader, where, matching.matching)
            listed = ((number, Document(name, "", metadata)) for number, name, metadata in documents(reader, among))
            return records.page_of(reader, first_sorted(listed, orders, after, limit + 1), limit, len(among))

    def keys(self) -> Keys:
        with self.reading() as reader:
            return fields.numbers(reader, "SELECT key AS number FROM passages ORDER BY key")

    def expired(self) -> Keys:
        if not self._has_expired():
            return np.empty(0, np.int64)
        with self.reading() as reader:
            return records.expired(reader)

    def matching(self, where: Filter) -> Keys:
        with self._live() as reader:
            return self._filter_cache.found(self.path, reader, where, matching.keys_matching)

    def unmatched(self, where: Filter) -> list[str]:
        with self._live() as reader:
            return self._filter_cache.found(self.path, reader, where, unmatched)

    def ids_matching(self, where: Filter) -> list[str]:
        with self._live() as reader:
            return records.ids(reader, matching.matching(reader, where).tolist())

    def facets(self, values: int) -> Facets:
        with self._live() as reader:
            return facets.facets(reader, values)

    def counts(
        self,
        query: str | None,
        where: Filter | None,
        paths: Sequence[str],
        values: int,
        *,
        options: WordOptions = NO_OPTIONS,
    ) -> Counts:
        hidden = self.expired()
        with self._live() as reader:
            keys = None if where is None else self._filter_cache.found(self.path, reader, where, matching.keys_matching)
            if query is not None:
                asked = expanded(reader, query, records.word_rules(reader), options)
                keys = np.setdiff1d(words.having(reader, asked, keys), hidden, assume_unique=True)
            passages = records.size(reader).passages if keys is None else len(keys)
            documents = None if keys is None or not paths else records.numbers_of(reader, keys)
            found, complete = facets.counts(reader, documents, paths, values)
            return Counts(passages, found, complete)

    def words(self, query: str, k: int, where: Filter | None = None, options: WordOptions = NO_OPTIONS) -> Ranking:
        hidden = self.expired()
        with self._live() as reader:
            allowed = (
                None if where is None else self._filter_cache.found(self.path, reader, where, matching.keys_matching)
            )
            rules = records.word_rules(reader)
            found = words.search(reader, expanded(reader, query, rules, options), k + len(hidden), allowed, rules)
            return found.without(hidden, k)

    def highlights(self, texts: Sequence[str], query: str, options: WordOptions = NO_OPTIONS) -> list[list[Span]]:
        rules = self._cached(records.word_rules)
        if options == NO_OPTIONS:
            return words.highlights(texts, parse(query, rules).terms, rules.stemming)
        with self.reading() as reader:
            terms = expanded(reader, query, rules, options).matching
        return words.highlights(texts, terms, rules.stemming)

    def vectors(self, keys: Sequence[int] | None = None, after: int = 0) -> Blocks:
        """Yield vectors in blocks, in order of keys, as `Store.vectors` describes.

        Each block is read in its own transaction, so a write between two blocks can change the later blocks.
        """
        if keys is not None:
            for block in blocks(sorted(set(keys))):
                with self.reading() as reader:
                    found = records.of(reader, block)
                if len(found[0]):
                    yield found
        else:
            yield from self._beyond(after, "vectors")

    def fresh(self) -> Blocks:
        return self._beyond(0, "fresh")

    def _beyond(self, after: int, table: Table) -> Blocks:
        while True:
            with self.reading() as reader:
                found = records.beyond(reader, after, table)
            if not len(found[0]):
                return
            after = int(found[0][-1])
            yield found

    def tombstones(self, upto: int) -> Keys:
        with self.reading() as reader:
            return writing.tombstones(reader, upto)

    def bury(self, keys: Keys) -> None:
        if len(keys):
            with self.writing() as writer:
                writing.bury(writer, keys)

    def last_key(self) -> int:
        with self.reading() as reader:
            (last,) = reader.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'passages'").fetchone()
        return last or 0

    def stale(self, fingerprint: str, limit: int) -> list[tuple[int, str]]:
        with self.reading() as reader:
            return writing.stale(reader, fingerprint, limit)

    def refresh(self, fingerprint: str, keys: Keys, matrix: Floats) -> None:
        if full := self._full():
            raise full
        with self.writing() as writer:
            writing.refresh(writer, fingerprint, keys, matrix)

    def swap(self, fingerprint: str) -> bool:
        with self.writing() as writer:
            reach("store.before-swap")
            swapped = writing.swap(writer, fingerprint)
        reach("store.after-swap")
        return swapped

    def keep_map(self, found: Map, generation: str) -> None:
        if full := self._full():
            raise full
        with self.writing() as writer:
            records.keep_map(writer, found, generation)

    def kept_map(self) -> Map | None:
        with self.reading() as reader:
            return records.kept_map(reader)

    def copy(self, to: Path, stop: Stop = never) -> tuple[Corpus, Size]:
        try:
            with self.reading() as reader, stopping(reader, stop):
                reach("store.before-copy")
                reader.rollback()  # VACUUM must not run inside a transaction
                reader.execute("VACUUM INTO ?", (str(to),))
            fsync(to)
            reach("store.after-copy")
            with closing(sqlite3.connect(to)) as copied:
                return records.described(copied)
        except BaseException:
            to.unlink(missing_ok=True)
            raise

    def verify(self) -> list[str]:
        with self.reading() as reader:
            found = verify(reader)
        with self.maintaining() as writer:
            try:
                return found + words.check(writer, records.word_rules(writer))
            except UNREADABLE as error:
                return [*found, f"words: {error}"]

    def give_back(self, least: int = 0) -> None:
        """Return unused pages of the file to the disk; see `Store.give_back`.

        If the disk is full or fails, no error is raised. The remaining unused pages stay in the file, for later writes.
        """
        with suppress(Unhealthy, InsufficientStorage):
            with self.writing() as writer:
                if not records.size(writer).passages:
                    words.clear(writer)
                    fields.clear(writer)
            free, before = self._free_bytes(0), 0
            if not free or (free < least and free < _PART * self.size().bytes):
                return
            while free != before:
                before, free = free, self._free_bytes(_STEP)
            self.checkpoint_soon()

    def _free_bytes(self, given_back: int) -> int:
        """Release up to `given_back` unused pages to the disk. Return the size of all remaining unused pages."""
        with self.writing() as writer:
            if given_back:
                # `fetchall` runs the statement to its end. `execute` takes a single step, which frees only one page.
                writer.execute(f"PRAGMA incremental_vacuum({given_back})").fetchall()
            free = "SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size"
            return int(writer.execute(free).fetchone()[0])
