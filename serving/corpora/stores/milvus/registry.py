"""Registry of the corpora: a small collection of Milvus with one record for each corpus.

A record has the encoder, the settings, and the name of the collection with the rows. Before each operation, the record
is read with strong consistency, so that all servers of one Milvus agree.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter
from pymilvus import DataType, MilvusClient

from serving.corpora.ports import StoreError
from serving.corpora.stores.milvus.connection import TIMEOUT, Connection
from serving.corpora.stores.milvus.expressions import literal
from serving.corpora.values import Corpus, Stemming
from serving.errors import NotFound, Unhealthy

REGISTRY = "isosphere_corpora"
PREFIX = "isosphere_"
MAX_CORPORA = 16_384
"""Maximum number of rows in an answer of Milvus."""
FORMAT = 1
ALL = 'name != ""'
"""Expression for all records."""
_FIELDS = {"name", "record", "vector"}


@dataclass(frozen=True)
class Table:
    """A collection of rows, and the encoder that computed their vectors."""

    collection: str
    fingerprint: str
    dim: int
    index: str
    """Type of the vector index, such as HNSW."""
    parameters: Mapping[str, int] = field(default_factory=dict)
    """Parameters with which the vector index was created."""


@dataclass(frozen=True)
class Measured:
    """The measured recall of an index, and the search parameters with which the recall reaches its target."""

    effort: Mapping[str, int]
    recall: float
    queries: int
    passages: int
    """Number of passages at the time of the measurement."""
    seconds: float


@dataclass(frozen=True)
class Record:
    """A corpus in the registry."""

    name: str
    created: float
    description: str | None = None
    recall_target: float | None = None
    stemming: Stemming | None = None
    fingerprint: str | None = None
    dim: int | None = None
    """Number of dimensions of the encoder `fingerprint`. This encoder computed the vectors in `table`."""
    table: Table | None = None
    """The rows. None before the first document."""
    fresh: Table | None = None
    """The rows of a re-embedding that is not complete."""
    spent: tuple[str, ...] = ()
    """Collections to delete."""
    split: bool = False
    """True if a document may have several passages."""
    expiring: bool = False
    """True if a document may have an expiry."""
    generation: str = ""
    dropped: bool = False
    measured: Measured | None = None
    format: int = field(default=FORMAT)

    @property
    def corpus(self) -> Corpus:
        return Corpus(
            self.name,
            self.description,
            self.recall_target,
            self.created,
            self.fingerprint,
            self.dim,
            self.stemming,
            generation=self.generation,
        )

    def renewed(self, **changes: Any) -> Record:
        """Return the record with `changes` and a new generation."""
        return replace(self, generation=secrets.token_hex(8), **changes)

    def with_table(self, table: Table) -> Record:
        """Return the record with `table` in place of the earlier table, and with a new generation.

        The Milvus collection of the earlier table is added to `spent`, the collections to delete.
        """
        spent = (*self.spent, self.table.collection) if self.table else self.spent
        return self.renewed(table=table, fingerprint=table.fingerprint, dim=table.dim, spent=spent, measured=None)


_RECORD = TypeAdapter(Record)


class Registry:
    """The records of all corpora, and their locks.

    Writes of one server to a corpus take turns. Writes of several servers are not ordered, so the last one wins.

    Raises:
        StoreError: the collection `REGISTRY` of the database belongs to another program.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = connection.client
        self._locks: dict[str, threading.RLock] = {}
        self.fingerprints: dict[str, str | None] = {}
        """Fingerprints of the corpora as they were last read or written."""
        with connection.errors():
            if not self._client.has_collection(REGISTRY, timeout=TIMEOUT):
                self._create()
            found = self._client.describe_collection(REGISTRY, timeout=TIMEOUT)
            if {one["name"] for one in found["fields"]} != _FIELDS:
                raise StoreError(
                    f"--store: the collection {REGISTRY} of {connection.address} does not belong to Isosphere: "
                    "give another database, such as milvus://host:19530/DATABASE"
                )

    def names(self) -> list[str]:
        """Return the names of all corpora, including corpora whose record has a later format."""
        return sorted(one["name"] for one in self._found(ALL) if _is_later(one) or not one["dropped"])

    def records(self) -> list[Record]:
        """Return all records except those of later formats. Records of corpora that are being deleted are included."""
        return [_RECORD.validate_python(one) for one in self._found(ALL) if not _is_later(one)]

    def find(self, name: str) -> Record | None:
        """Return the record of a corpus, or None if there is no such corpus.

        Raises:
            Unhealthy: a later version of this server wrote the record.
        """
        for one in self._found(f"name == {literal(name)}"):
            if _is_later(one):
                raise Unhealthy(f"the corpus {name!r} was written by a later version of Isosphere: use that version")
            if not one["dropped"]:
                return _RECORD.validate_python(one)
        return None

    def read(self, name: str) -> Record:
        """Return the record of a corpus.

        Raises:
            NotFound: there is no such corpus.
            Unhealthy: see `find`.
        """
        if record := self.find(name):
            self.fingerprints[name] = record.fingerprint
            return record
        raise NotFound(f"there is no corpus {name!r}")

    def lock(self, name: str) -> threading.RLock:
        """Return the lock of a corpus. Each write to the corpus holds this lock."""
        return self._locks.setdefault(name, threading.RLock())

    @contextmanager
    def changing(self, name: str) -> Iterator[Record]:
        """Hold the lock of a corpus in the block, and yield its record. The errors are those of `read`."""
        with self.lock(name):
            yield self.read(name)

    def write(self, record: Record) -> Record:
        """Store the record, and return it."""
        row = {"name": record.name, "record": asdict(record), "vector": [0.0, 0.0]}
        with self._connection.errors():
            self._client.upsert(REGISTRY, [row], timeout=TIMEOUT)
        self.fingerprints[record.name] = record.fingerprint
        return record

    def delete(self, name: str) -> None:
        with self._connection.errors():
            self._client.delete(REGISTRY, ids=[name], timeout=TIMEOUT)
        self.fingerprints.pop(name, None)

    def _found(self, where: str) -> list[dict[str, Any]]:
        with self._connection.errors():
            self._connection.load(REGISTRY)
            rows = self._client.query(
                REGISTRY, filter=where, output_fields=["record"], limit=MAX_CORPORA, timeout=TIMEOUT
            )
        return [row["record"] for row in rows]

    def _create(self) -> None:
        schema = MilvusClient.create_schema(auto_id=False, description="the corpora of Isosphere")
        schema.add_field("name", DataType.VARCHAR, is_primary=True, max_length=128)
        schema.add_field("record", DataType.JSON)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=2)  # Milvus requires a vector in every collection
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="L2")
        self._client.create_collection(
            REGISTRY, schema=schema, index_params=index, consistency_level="Strong", timeout=TIMEOUT
        )


def _is_later(record: Mapping[str, Any]) -> bool:
    return bool(record["format"] > FORMAT)


def new_collection(name: str) -> str:
    """Return the name for a new collection with rows of the corpus `name`. Each call returns another name."""
    return f"{PREFIX}{_plain(name)}_{secrets.token_hex(4)}"


def alias(name: str) -> str:
    """Return the alias under which other programs find the rows of a corpus."""
    plain = _plain(name)
    if plain == name and f"{PREFIX}{name}" != REGISTRY:
        return f"{PREFIX}{name}"
    return f"{PREFIX}{plain}_{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)
