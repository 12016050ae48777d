"""Corpora on Milvus, which stores the documents and searches them."""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from models.bundle.bundle import Manifest
from models.bundle.disk import make_folder
from models.errors import Failed
from serving.corpora.backend import Description
from serving.corpora.indexes.state import Report
from serving.corpora.maps import Placed, Unplaced
from serving.corpora.ports import IndexSize, Stop, StoreError, never
from serving.corpora.stores.milvus.connection import connect
from serving.corpora.stores.milvus.indexes import report
from serving.corpora.stores.milvus.lifecycle import Collections
from serving.corpora.stores.milvus.recall import Recall
from serving.corpora.stores.milvus.registry import Record, Registry
from serving.corpora.stores.milvus.uploads import Uploads
from serving.corpora.stores.milvus.writing import Writer
from serving.corpora.stores.sqlite import hold
from serving.corpora.stores.writing import check_bound, stemmed_otherwise
from serving.corpora.values import Corpus, Map, OwnVectors, Size
from serving.errors import Damaged, Invalid, ServiceError, Unsupported
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


class MilvusCorpora(Writer):
    """The corpora in one database of Milvus."""

    def __init__(self, settings: Settings) -> None:
        """Open the corpora on the Milvus of `--store`.

        Raises:
            StoreError: Milvus can't be used (see `connect` and `Registry`), a file of the data folder is damaged, or
                another process uses the data folder.
            Failed: Milvus can't be reached or is not ready, or the data folder can't be written.
        """
        jobs_of_one_server = settings.data / "corpora"
        try:
            with ExitStack() as opened:
                with disk_errors(jobs_of_one_server):
                    make_folder(jobs_of_one_server)
                opened.callback(os.close, hold(jobs_of_one_server))
                self._connection = connect(settings.store)
                opened.callback(self._connection.close)
                uploads = Uploads(settings.data / "milvus" / "uploads.sqlite")
                opened.callback(uploads.close)
                registry = Registry(self._connection)
                self._opened = opened.pop_all()
        except Damaged as error:
            raise StoreError(f"--data: {error}") from error
        except ServiceError as error:
            raise Failed(f"--store: {error}") from error
        collections = Collections(self._connection, registry, settings.index, settings.expected_passages)
        recall = Recall(registry, collections, settings.exact_below)
        super().__init__(registry, collections, uploads, recall)

    def names(self) -> list[str]:
        return self._registry.names()

    def warm(self) -> None:
        for record in self._registry.records():
            try:
                with self._registry.lock(record.name):
                    self._collections.clean(record)
                if record.table and not record.dropped:
                    self._collections.rows(record)
                    if record.measured is None:
                        self._recall.count(record, self._collections.size(record).passages)
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
                raise stemmed_otherwise(known.corpus, stemming)
            if encoder:
                check_bound(known.corpus, encoder.fingerprint, encoder.dim)
                known = replace(known, fingerprint=encoder.fingerprint, dim=encoder.dim or known.dim)
            if record is None:
                self._collections.check_free(name)
            changed = replace(
                known,
                description=known.description if corpus.description is None else corpus.description,
                recall_target=corpus.recall_target or known.recall_target,
                stemming=stemming or known.stemming,
            )
            self._registry.write(changed)
        if known.measured and changed.recall_target != known.recall_target:
            self._recall.begin(name)
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
        """Measure the recall of the index, choose the parameters of searches, and return the report of the index.

        Return None before the first document. Milvus builds the index itself.
        """
        record = self._recall.measure(name)
        return report(record, self._collections.size(record))

    def index_sizes(self) -> dict[str, IndexSize]:
        return dict(self._collections.sizes)

    def close(self) -> None:
        self._recall.close()
        self._opened.close()

    # Maps and snapshots.

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
