"""The collections of corpora: their creation with an index, their opening, their aliases, and their removal."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from serving.corpora.ports import IndexSize
from serving.corpora.stores.milvus.connection import LOAD_SECONDS, TIMEOUT, Connection
from serving.corpora.stores.milvus.indexes import KINDS, METRIC, planned, search_parameters
from serving.corpora.stores.milvus.registry import Record, Registry, Table, alias, new_collection
from serving.corpora.stores.milvus.rows import K1, SPARSE, VECTOR, B, schema
from serving.corpora.stores.milvus.table import Rows
from serving.corpora.values import Size
from serving.errors import Conflict, ServiceError, Unhealthy
from serving.operations.clock import now

log = logging.getLogger(__name__)


class Collections:
    """The collections of Milvus that have the rows of corpora.

    `index` is the option `--index`, and `expected` is the option `--expected-passages`.
    """

    def __init__(self, connection: Connection, registry: Registry, index: str, expected: int) -> None:
        self._connection = connection
        self._client = connection.client
        self._registry = registry
        self._option = index
        self.expected: defaultdict[str, int] = defaultdict(lambda: expected)
        """Passages that a corpus is expected to have when its collection is made."""
        self.sizes: dict[str, IndexSize] = {}
        """Sizes of the corpora as they were last counted."""

    def check_free(self, name: str) -> None:
        """Check that the alias of this corpus is not the name of another program's collection.

        Raises:
            Conflict: the alias is the name of such a collection.
        """
        with self._connection.errors():
            if not self._client.has_collection(alias(name), timeout=TIMEOUT):
                return
            found = self._client.describe_collection(alias(name), timeout=TIMEOUT)
        if found["description"] != schema(2).description:
            raise Conflict(
                f"{self._connection.address} has a collection {alias(name)} that does not belong to Isosphere"
            )

    def create(self, record: Record, fingerprint: str, dim: int) -> Table:
        """Create a collection for a corpus, with the best type of index that Milvus supports.

        The types to try come from `planned`, best first.

        Raises:
            Unhealthy: Milvus failed, or supports none of these types.
        """
        client, collection = self._client, new_collection(record.name)
        passages = max(self.size(record).passages, self.expected[record.name])
        try:
            with self._connection.errors():
                client.create_collection(
                    collection, schema=schema(dim), consistency_level="Strong", timeout=LOAD_SECONDS
                )
                kinds = planned(passages, record.corpus.wanted_recall, self._option, lite=self._connection.is_lite)
                index = self._indexed(collection, kinds, passages)
                others = client.prepare_index_params()
                parameters = {"bm25_k1": K1, "bm25_b": B}
                others.add_index(SPARSE, index_type="SPARSE_INVERTED_INDEX", metric_type="BM25", params=parameters)
                if not self._connection.is_lite:  # Milvus Lite can't index arrays
                    others.add_index("terms", index_type="INVERTED")
                    others.add_index("document", index_type="INVERTED")
                client.create_index(collection, others, timeout=LOAD_SECONDS, sync=False)
        except ServiceError:  # callers try again, and each attempt makes a collection
            with suppress(ServiceError), self._connection.errors():
                self._connection.drop(collection)
            raise
        return Table(collection, fingerprint, dim, index, KINDS[index].parameters(passages))

    def _indexed(self, collection: str, kinds: Sequence[str], passages: int) -> str:
        for kind in kinds:
            try:
                given = self._client.prepare_index_params()
                parameters = KINDS[kind].parameters(passages)
                given.add_index(VECTOR, index_type=kind, metric_type=METRIC, params=parameters)
                with self._connection.errors():
                    self._client.create_index(collection, given, timeout=LOAD_SECONDS, sync=False)
                return kind
            except Unhealthy as error:
                if kind == kinds[-1]:
                    raise
                log.warning("%s has no index %s: %s", self._connection.address, kind, error)
        raise AssertionError("a plan has at least one type of index")

    def rows(self, record: Record, table: Table | None = None) -> Rows:
        """Return the rows of a corpus in `table`, loaded for searches. If `table` is None, use `record.table`."""
        table = table or record.table
        assert table is not None, "callers ask only for the rows of a corpus that has some"
        with self._connection.errors():
            self._connection.load(table.collection)
        return Rows(
            self._connection,
            table.collection,
            record.corpus.wanted_stemming,
            lambda k, most: search_parameters(table.index, record.measured, k, most=most),
        )

    def live(self, record: Record) -> Rows | None:
        """Return the rows of the documents that have not expired, or None before the corpus has a document."""
        if record.table is None:
            return None
        found = self.rows(record)
        return replace(found, live=f"expires_at > {now()}") if record.expiring else found

    def size(self, record: Record) -> Size:
        rows = self.live(record)
        if rows is None or record.table is None:
            size = Size(0, 0, 0)
        else:
            passages = rows.count()
            documents = rows.documents_count() if record.split else passages
            size = Size(documents, passages * record.table.dim * 4, passages)
        self.sizes[record.name] = IndexSize(size.passages, size.bytes)
        return size

    def clean(self, record: Record) -> Record:
        """Delete the collections that a corpus no longer needs, and point the corpus's alias to `record.table`.

        Return the record without these collections. If the corpus is dropped, delete its alias and its record, too.

        Call this method after the record is stored. After a crash, the call can be repeated.
        """
        client = self._client
        with self._connection.errors():
            if record.table and not record.dropped:
                known = client.list_aliases(record.table.collection, timeout=TIMEOUT)["aliases"]
                if alias(record.name) not in known:
                    self._point(alias(record.name), record.table.collection)
            tables = [table.collection for table in (record.table, record.fresh) if table and record.dropped]
            gone = [*record.spent, *tables]
            if record.dropped and record.table:
                with suppress(ServiceError), self._connection.errors():
                    client.drop_alias(alias(record.name), timeout=TIMEOUT)
            for collection in gone:
                self._connection.drop(collection)
        if record.dropped:
            self._registry.delete(record.name)
            self.sizes.pop(record.name, None)
            self.expected.pop(record.name, None)
        elif record.spent:
            return self._registry.write(replace(record, spent=()))
        return record

    def _point(self, name: str, collection: str) -> None:
        try:
            with self._connection.errors():
                self._client.alter_alias(collection, name, timeout=TIMEOUT)
        except ServiceError:
            self._client.create_alias(collection, name, timeout=TIMEOUT)
