"""Corpora on Milvus, which is both store and index."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from models.bundle.bundle import Manifest
from models.bundle.disk import make_folder
from models.runtimes.base import Floats
from serving.corpora.backend import Backend, Description, DocumentCursor, DocumentPage, check_generation
from serving.corpora.filters import Filter
from serving.corpora.indexes.state import Report
from serving.corpora.maps import Placed, Sample, Unplaced
from serving.corpora.ports import IndexSize, Stop, never
from serving.corpora.search import Query, SearchOptions, SearchResult
from serving.corpora.stores.milvus import reading
from serving.corpora.stores.milvus.connection import connect
from serving.corpora.stores.milvus.indexes import report
from serving.corpora.stores.milvus.lifecycle import Collections
from serving.corpora.stores.milvus.recall import Recall
from serving.corpora.stores.milvus.registry import Record, Registry
from serving.corpora.stores.milvus.table import Rows
from serving.corpora.stores.milvus.uploads import Uploads
from serving.corpora.stores.milvus.writing import Writer
from serving.corpora.stores.sqlite import hold
from serving.corpora.stores.writing import check_bound
from serving.corpora.values import (
    NO_OPTIONS,
    Changes,
    Chunking,
    Content,
    Corpus,
    Counts,
    Document,
    Facets,
    KnownText,
    Map,
    OwnVectors,
    PassageKey,
    Size,
    Sort,
    WordOptions,
)
from serving.errors import Conflict, Invalid, NotFound, ServiceError, Unsupported
from serving.operations.bounds import BOUNDS, Bounds
from serving.operations.files import disk_errors
from serving.settings import Settings

log = logging.getLogger(__name__)
NO_MAPS = "corpora on Milvus store no map: `isosphere copy-corpus` copies a corpus to a folder, where it can be mapped"
BACKUP = (
    "corpora on Milvus have no snapshots: copy the Milvus database with milvus-backup "
    "(https://github.com/zilliztech/milvus-backup), or a corpus with `isosphere copy-corpus`"
)
BACKUP_LITE = (
    "corpora on Milvus have no snapshots: copy the folder of Milvus Lite while no server uses it, "
    "or a corpus with `isosphere copy-corpus`"
)


class MilvusCorpora(Backend):
    """The corpora in one database of Milvus."""

    def __init__(self, settings: Settings) -> None:
        """Open the corpora on the Milvus of `--store`.

        Raises:
            StoreError: there is no Milvus, its version is too old, or its collections are not ours.
        """
        jobs_of_one_server = settings.data / "corpora"
        with ExitStack() as opened:
            with disk_errors(jobs_of_one_server):
                make_folder(jobs_of_one_server)
            opened.callback(os.close, hold(jobs_of_one_server))
            self._connection = connect(settings.store)
            opened.callback(self._connection.close)
            self._uploads = Uploads(settings.data / "milvus" / "uploads.sqlite")
            opened.callback(self._uploads.close)
            self._registry = Registry(self._connection)
            self._opened = opened.pop_all()
        self._collections = Collections(self._connection, self._registry, settings.index, settings.expected_passages)
        self._recall = Recall(self._registry, self._collections, settings.exact_below)
        self._writer = Writer(self._registry, self._collections, self._uploads, self._recall)

    # Corpora.

    def names(self) -> list[str]:
        return self._registry.names()

    def warm(self) -> None:
        for record in self._registry.records():
            try:
                with self._registry.lock(record.name):
                    self._collections.clean(record)
                if record.table and not record.dropped:
                    self._collections.rows(record)
            except ServiceError as error:
                log.error("corpus %r is not served: %s", record.name, error)

    def use_gpu(self) -> str | None:
        return None  # Milvus chooses the device of its own searches

    def create(self, corpus: Corpus, encoder: Manifest | OwnVectors | None = None, passages: int = 0) -> bool:
        name, stemming = corpus.name, corpus.stemming
        for setting, value in asdict(corpus.words).items():
            if value:
                raise Invalid("corpora on Milvus do not have this setting: leave it out", field=setting)
        with self._registry.lock(name):
            if passages:
                self._collections.expected[name] = passages
            record = self._registry.find(name)
            known = record or Record(name, time.time()).renewed()
            if stemming and stemming != known.corpus.wanted_stemming and self._collections.size(known).documents:
                raise Conflict(
                    f"corpus {name!r} has documents, indexed with the stemming {known.corpus.wanted_stemming!r}: "
                    f"create another corpus with {stemming!r}, and upload the documents there"
                )
            if encoder:
                check_bound(known.corpus, encoder.fingerprint, encoder.dim)
                known = replace(known, fingerprint=encoder.fingerprint, dim=encoder.dim or known.dim)
            if record is None:
                self._collections.check_free(name)
            self._registry.write(
                replace(
                    known,
                    description=known.description if corpus.description is None else corpus.description,
                    recall_target=corpus.recall_target or known.recall_target,
                    stemming=stemming or known.stemming,
                )
            )
        return record is None

    def drop(self, name: str) -> None:
        with self._registry.changing(name) as record:
            self._uploads.forget(name)
            self._collections.clean(self._registry.write(replace(record, dropped=True)))

    def rename(self, name: str, to: str) -> None:  # noqa: ARG002
        self._registry.read(name)
        raise Invalid(
            "corpora on Milvus can't be renamed: give the corpus an alias with PUT /aliases/{alias}", field="name"
        )

    def corpus(self, name: str) -> tuple[Corpus, Size]:
        record = self._registry.read(name)
        return record.corpus, self._collections.size(record)

    def description(self, name: str) -> Description:
        record = self._registry.read(name)
        size = self._collections.size(record)
        return Description(record.corpus, size, report(record, size))

    def build_now(self, name: str) -> Report | None:
        """Measure the recall of the index, and choose the effort of searches. Milvus builds the index itself."""
        record = self._recall.measure(name)
        return report(record, self._collections.size(record))

    def index_sizes(self) -> dict[str, IndexSize]:
        return dict(self._collections.sizes)

    def verify(self, name: str) -> list[str]:
        """Return a line for each document with missing or superfluous passages. Milvus checks its own files."""
        record = self._registry.read(name)
        return reading.verify(self._collections.rows(record)) if record.table else []

    def close(self) -> None:
        self._recall.close()
        self._opened.close()

    # Documents.

    def put(self, name: str, content: Content) -> None:
        self._writer.put(name, content)

    def delete(self, name: str, document: str) -> None:
        self._writer.delete(name, document)

    def delete_where(self, name: str, where: Filter, before_commit: Callable[[], None] = lambda: None) -> int:
        return self._writer.delete_where(name, where, before_commit)

    def patch(
        self,
        name: str,
        which: Sequence[str] | Filter,
        changes: Changes,
        bounds: Bounds = BOUNDS,
        before_commit: Callable[[], None] = lambda: None,
    ) -> int:
        return self._writer.patch(name, which, changes, bounds, before_commit)

    def remove_expired(self) -> None:
        self._writer.remove_expired()

    def counts(
        self,
        name: str,
        query: str | None,
        where: Filter | None,
        paths: Sequence[str],
        values: int,
        *,
        options: WordOptions = NO_OPTIONS,
    ) -> Counts:
        return reading.counts(self._live(name), query, where, paths, values, options=options)

    def document(self, name: str, document: str) -> Document:
        table = self._live(name)
        found = table.document(document) if table else None
        if found is None:
            raise NotFound(f"corpus {name!r} has no document {document!r}")
        return found

    def page(
        self,
        name: str,
        after: DocumentCursor | None,
        limit: int,
        where: Filter | None = None,
        sort: Sequence[Sort] = (),
    ) -> DocumentPage:
        record = self._registry.read(name)
        return reading.page(record, self._collections.live(record), after, limit, where=where, sort=sort)

    def unmatched(self, name: str, where: Filter) -> list[str]:
        return reading.unmatched(self._live(name), where)

    def embedded(
        self,
        name: str,
        texts: Sequence[str],
        chunking: Chunking | None,  # noqa: ARG002
        fingerprint: str,  # noqa: ARG002
    ) -> list[KnownText | None]:
        """Return None for each text: rows are not indexed by their text, so every text is embedded."""
        self._registry.read(name)
        return [None for _ in texts]

    def contents(self, name: str) -> Iterator[Content]:
        record = self._registry.read(name)
        table = self._collections.live(record)
        return reading.contents(table, record.fingerprint or "") if table else iter(())

    def facets(self, name: str, values: int) -> Facets:
        return reading.facets(self._live(name), values)

    def sample(self, name: str, size: int, field: str | None) -> Sample:
        return reading.sample(self._live(name), size, field)

    def search(
        self, name: str, queries: Sequence[Query], options: SearchOptions, fingerprint: str | None = None
    ) -> SearchResult:
        try:
            return self._search(self._registry.read(name), queries, options, fingerprint)
        except NotFound:  # a re-embedding may have removed the collection meanwhile
            return self._search(self._registry.read(name), queries, options, fingerprint)

    def index_fingerprint(self, name: str) -> str | None:
        return self._registry.fingerprints.get(name)

    # Accepted uploads.

    def accept(self, name: str, job: str) -> None:
        self._registry.read(name)
        self._uploads.accept(name, job)

    def accepted(self, name: str) -> list[str]:
        return self._uploads.accepted(name)

    def release(self, name: str, job: str) -> None:
        self._uploads.release(name, job)

    # Re-embedding.

    def stale(self, name: str, fingerprint: str, limit: int) -> list[tuple[PassageKey, str]]:
        return self._writer.stale(name, fingerprint, limit)

    def refresh(self, name: str, fingerprint: str, keys: Sequence[PassageKey], vectors: Floats) -> None:
        self._writer.refresh(name, fingerprint, keys, vectors)

    def read_fresh(self, name: str) -> None:  # noqa: ARG002
        return None

    def swap(self, name: str, fingerprint: str, beside: object = None) -> bool:  # noqa: ARG002
        return self._writer.swap(name, fingerprint)

    # Snapshots.

    def check_maps(self) -> None:
        raise Unsupported(NO_MAPS)

    def unplaced(self, name: str) -> Unplaced:  # noqa: ARG002
        raise Unsupported(NO_MAPS)

    def keep_map(self, name: str, found: Map, generation: str) -> None:  # noqa: ARG002
        raise Unsupported(NO_MAPS)

    def placed(self, name: str, size: int, field: str | None) -> Placed | None:  # noqa: ARG002
        return None

    def check_snapshots(self) -> None:
        raise Unsupported(BACKUP_LITE if self._connection.is_lite else BACKUP)

    def copy(self, name: str, to: Path, stop: Stop = never) -> tuple[Corpus, Size]:  # noqa: ARG002
        raise Unsupported(BACKUP)

    def adopt(self, name: str, file: Path, stop: Stop = never, bounds: Bounds = BOUNDS) -> None:  # noqa: ARG002
        raise Unsupported(BACKUP)

    def _search(
        self, record: Record, queries: Sequence[Query], options: SearchOptions, fingerprint: str | None
    ) -> SearchResult:
        if options.after:
            check_generation(options.after.generation, record.generation)
        if fingerprint is not None and record.fingerprint != fingerprint:
            self.encoder(record.name, [fingerprint])
            return SearchResult([[] for _ in queries], record.generation, None)
        return reading.search(record, self._collections.live(record), queries, options)

    def _live(self, name: str) -> Rows | None:
        return self._collections.live(self._registry.read(name))
