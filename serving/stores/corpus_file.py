"""One corpus in one SQLite file: WAL, synchronous=FULL, a transaction for every group of writes."""

from __future__ import annotations

import secrets
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from models.disk import fsync
from serving.bounds import Bounds
from serving.errors import InsufficientStorage, NotFound, ServiceError
from serving.failpoints import reach
from serving.filters import Filter
from serving.ports import (
    Blocks,
    Change,
    Chunking,
    Content,
    Corpus,
    Document,
    Facets,
    Floats,
    Held,
    Keys,
    Page,
    Passage,
    Ranking,
    Size,
    Stop,
    Write,
    never,
)
from serving.stores import fields, overtaken, reading, records, refreshing, tombstones, vectors, words
from serving.stores.blocks import blocks
from serving.stores.connections import Connections, stopping
from serving.stores.facets import facets
from serving.stores.foreign import check_values
from serving.stores.giving_back import give_back
from serving.stores.matching import matching
from serving.stores.migrations import check_ours, mark, migrate
from serving.stores.shape import check_shape
from serving.stores.shared import Shared
from serving.stores.vectors import Table
from serving.stores.verification import verify
from serving.stores.writing import attempt, create, promise, stem

RESERVED_BYTES = 4 << 20
"""Of the disk: nothing is added to them, so that documents can be removed from a disk that corpora have filled."""


class CorpusFile:
    """An open file that holds a corpus, or is to: one that is `new` gets it from `create`; one that is `foreign` is
    held to these bounds before it is read; whatever is done ends by `stop`. What its other methods do, `Store` says.

    Raises:
        StoreError: the file is not ours, or of a later version.
        ServiceError: it holds no corpus, or can't be read or written, see `Connections.naming`.
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
        self.path = path
        shared = shared or Shared()
        self._connections = Connections(path, synchronous, stop, shared.open_files)
        self._matched = shared.matched
        self._described: tuple[int, tuple[Corpus, Size]] | None = None
        try:
            with self._connections.naming():
                if new:
                    mark(path)
                else:
                    check_ours(path)
                    if foreign:
                        check_shape(path)
                        check_values(path, foreign, stop or never)
            with self._connections.writing() as writer:
                migrate(writer, path)
                if not new:
                    reading.corpus(writer)
        except BaseException:
            self.close()
            raise

    @property
    def damaged(self) -> bool:
        """Whether something else than was written has been found in it."""
        return self._connections.damaged

    def close(self) -> None:
        """SQLite folds the write-ahead log into the file when the last connection goes."""
        self._connections.close()

    @contextmanager
    def set_aside(self, *, folded: bool = True) -> Iterator[None]:
        """Closed for the length of the block, `folded` into the one file, which the block may replace or remove."""
        with self._connections.alone(folded=folded):
            yield

    def create(self, corpus: Corpus) -> None:
        """The corpus that it is to hold."""
        with self._connections.writing() as writer:
            create(writer, corpus)

    def rename(self, name: str) -> None:
        """It goes on as another corpus: keys may mean something else than in the one that had this name."""
        with self._connections.writing() as writer:
            for job in overtaken.accepted(writer):
                overtaken.release(writer, job)
            writer.execute("UPDATE corpora SET name = ?, generation = ?", (name, secrets.token_hex(8)))

    def describe(self, wanted: Corpus) -> None:
        """See `Store`."""
        if (wanted.description, wanted.recall_target, wanted.stemming, wanted.fingerprint) == (None, None, None, None):
            return
        with self._connections.writing() as writer:
            if wanted.stemming is not None:
                stem(writer, wanted.stemming)
            if wanted.fingerprint is not None:
                promise(writer, wanted)
            writer.execute(
                "UPDATE corpora SET description = coalesce(?, description), recall_target = coalesce(?, recall_target)",
                (wanted.description, wanted.recall_target),
            )

    def corpus(self) -> Corpus:
        """See `Store`."""
        return self.described()[0]

    def described(self) -> tuple[Corpus, Size]:
        """See `Store`. Kept until something is written: a list of all corpora is not to open all of their files."""
        self._connections.check_open()
        writes, kept = self._connections.writes, self._described
        if kept and kept[0] == writes:
            return kept[1]
        with self._connections.reading() as reader:
            described = reading.corpus(reader), reading.size(reader)
        self._described = writes, described
        return described

    def write(self, writes: Sequence[Write]) -> list[Change | ServiceError]:
        """See `Store`."""
        with self._connections.writing() as writer:
            full = self._full()
            return [full if full and isinstance(write, Content) else attempt(writer, write) for write in writes]

    def _full(self) -> InsufficientStorage | None:
        """What is answered to a write that adds something when only the room for removals is left."""
        if shutil.disk_usage(self.path.parent).free >= RESERVED_BYTES:
            return None
        return InsufficientStorage(
            f"{self.path.name}: the disk is full: its last {RESERVED_BYTES >> 20} MB are for removals"
        )

    def accepted(self) -> list[str]:
        """See `Store`."""
        with self._connections.reading() as reader:
            return overtaken.accepted(reader)

    def accept(self, job: str) -> None:
        """See `Store`."""
        with self._connections.writing() as writer:
            overtaken.accept(writer, job)

    def release(self, job: str) -> None:
        """See `Store`."""
        with self._connections.writing() as writer:
            overtaken.release(writer, job)

    def embedded(self, texts: Sequence[str], chunking: Chunking | None, fingerprint: str) -> list[Held | None]:
        """See `Store`."""
        with self._connections.reading() as reader:
            if reading.corpus(reader).fingerprint != fingerprint:
                return [None] * len(texts)
            return reading.embedded(reader, texts, chunking)

    def document(self, document: str) -> Document:
        """See `Store`."""
        with self._connections.reading() as reader:
            found = records.document(reader, document)
        if found is None:
            raise NotFound(f"corpus {self.path.stem!r} has no document {document!r}")
        return found

    def passages(self, keys: Sequence[int]) -> dict[int, Passage]:
        """See `Store`."""
        with self._connections.reading() as reader:
            return records.passages(reader, keys)

    def page(self, after: int, limit: int, where: Filter | None = None) -> Page:
        """See `Store`."""
        with self._connections.reading() as reader:
            among = None if where is None else self._matched.numbers(self.path, reader, where)
            return records.page(reader, after, limit, among)

    def keys(self) -> Keys:
        """See `Store`."""
        with self._connections.reading() as reader:
            return fields.numbers(reader, "SELECT key AS number FROM passages ORDER BY key")

    def matching(self, where: Filter) -> Keys:
        """See `Store`."""
        with self._connections.reading() as reader:
            return self._matched.keys(self.path, reader, where)

    def unmatched(self, where: Filter) -> list[str]:
        """See `Store`."""
        with self._connections.reading() as reader:
            return self._matched.unmatched(self.path, reader, where)

    def ids_matching(self, where: Filter) -> list[str]:
        """See `Store`."""
        with self._connections.reading() as reader:
            return records.ids(reader, matching(reader, where).tolist())

    def facets(self, values: int) -> Facets:
        """See `Store`."""
        with self._connections.reading() as reader:
            return facets(reader, values)

    def words(self, query: str, k: int, where: Filter | None) -> Ranking:
        """See `Store`."""
        with self._connections.reading() as reader:
            allowed = None if where is None else self._matched.keys(self.path, reader, where)
            return words.search(reader, query, k, allowed, stemming=reading.corpus(reader).wanted_stemming)

    def vectors(self, keys: Sequence[int] | None, after: int) -> Blocks:
        """See `Store`. Between blocks nothing is held open."""
        if keys is not None:
            for block in blocks(sorted(set(keys))):
                with self._connections.reading() as reader:
                    found = vectors.of(reader, block)
                if len(found[0]):
                    yield found
        else:
            yield from self._beyond(after, "vectors")

    def fresh(self) -> Blocks:
        """See `Store`."""
        return self._beyond(0, "fresh")

    def _beyond(self, after: int, table: Table) -> Blocks:
        while True:
            with self._connections.reading() as reader:
                found = vectors.beyond(reader, after, table)
            if not len(found[0]):
                return
            after = int(found[0][-1])
            yield found

    def tombstones(self, upto: int) -> Keys:
        """See `Store`."""
        with self._connections.reading() as reader:
            return tombstones.upto(reader, upto)

    def bury(self, keys: Keys) -> None:
        """See `Store`."""
        if len(keys):
            with self._connections.writing() as writer:
                tombstones.bury(writer, keys)

    def last_key(self) -> int:
        """See `Store`."""
        with self._connections.reading() as reader:
            (last,) = reader.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'passages'").fetchone()
        return last or 0

    def stale(self, fingerprint: str, limit: int) -> list[tuple[int, str]]:
        """See `Store`."""
        with self._connections.reading() as reader:
            return refreshing.stale(reader, fingerprint, limit)

    def refresh(self, fingerprint: str, keys: Keys, matrix: Floats) -> None:
        """See `Store`."""
        if full := self._full():
            raise full
        with self._connections.writing() as writer:
            refreshing.refresh(writer, fingerprint, keys, matrix)

    def swap(self, fingerprint: str) -> bool:
        """See `Store`."""
        with self._connections.writing() as writer:
            reach("store.before-swap")
            swapped = refreshing.swap(writer, fingerprint)
        reach("store.after-swap")
        return swapped

    def copy(self, to: Path, stop: Stop = never) -> tuple[Corpus, Size]:
        """See `Store`."""
        try:
            with self._connections.reading() as reader, stopping(reader, stop):
                reach("store.before-copy")
                reader.rollback()  # VACUUM begins a transaction of its own
                reader.execute("VACUUM INTO ?", (str(to),))
            fsync(to)
            reach("store.after-copy")
            with closing(sqlite3.connect(to)) as copied:
                return reading.corpus(copied), reading.size(copied)
        except BaseException:
            to.unlink(missing_ok=True)
            raise

    def verify(self) -> list[str]:
        """See `Store`."""
        with self._connections.reading() as reader:
            found = verify(reader)
        with self._connections.maintaining() as writer:
            return found + words.check(writer, stemming=reading.corpus(writer).wanted_stemming)

    def size(self) -> Size:
        """Documents, bytes of the database without its log, and passages."""
        return self.described()[1]

    def give_back(self, least: int) -> None:
        """See `Store`."""
        give_back(self._connections, least)
