"""Writes to corpora in Milvus: documents, and the vectors of a re-embedding.

Milvus has no transactions. A write is a sequence of requests, and each request takes effect as a whole. The order of
the requests makes every write repeatable: after a crash, the same upload ends in the same state.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any

from models.runtimes.base import Floats
from serving.corpora.filters import ID, Filter, In
from serving.corpora.stores.milvus.expressions import literals
from serving.corpora.stores.milvus.lifecycle import Collections
from serving.corpora.stores.milvus.reading import Reader
from serving.corpora.stores.milvus.recall import Recall
from serving.corpora.stores.milvus.registry import Record, Registry
from serving.corpora.stores.milvus.rows import COPIED, VECTOR, WHOLE, described, passage_text, rows, unread
from serving.corpora.stores.milvus.table import TOGETHER, Rows, both
from serving.corpora.stores.milvus.uploads import Uploads
from serving.corpora.stores.writing import changed, check_bound, distinct_ids
from serving.corpora.values import OWN, Changes, Content, Document, PassageKey
from serving.errors import Conflict, NotFound, ServiceError, Stopped
from serving.operations.bounds import BOUNDS, Bounds
from serving.operations.clock import now

log = logging.getLogger(__name__)


class Writer(Reader):
    """The methods of `Backend` that write documents."""

    def __init__(self, registry: Registry, collections: Collections, uploads: Uploads, recall: Recall) -> None:
        super().__init__(registry, collections)
        self._uploads = uploads
        self._recall = recall
        self._compared: dict[str, str] = {}
        """For each collection that is being embedded again: the primary key up to which it was compared with the
        collection of new vectors."""

    def put(self, name: str, content: Content) -> None:
        """Implement `Backend.put`. After a crash, some documents may be missing. Repeat the upload to store them."""
        ids = distinct_ids(content)
        with self._registry.changing(name) as stored:
            made = list(rows(content, stored.corpus.wanted_stemming))
            if content.job is not None:
                gone = self._uploads.overtaken(name, content.job)
                made = [row for row in made if row["document"] not in gone]
            if not made:
                return
            record = self._bound(stored, content)
            if content.job is None:  # after `_bound`, because no job may skip a document due to a refused write
                self._uploads.note(name, ids)
            split = any(row["passages"] > 1 for row in made)
            if split and not record.split:
                record = self._registry.write(replace(record, split=True))
            self._forget_fresh(record, [row["document"] for row in made if row["passage"] == 0])
            if not record.expiring and any(document.expires_at is not None for document in content.documents):
                record = self._registry.write(replace(record, expiring=True))
            table = self._collections.rows(record)
            table.upsert(made)
            if record.split:
                self._remove_tails(table, made)
        self._recall.count(record, len(made))

    def delete(self, name: str, document: str) -> None:
        with self._registry.changing(name) as record:
            table = self._collections.live(record)
            if table is None or table.document(document) is None:
                raise NotFound(f"corpus {name!r} has no document {document!r}")
            self._remove(record, [document])

    def delete_where(self, name: str, where: Filter, before_commit: Callable[[], None] = lambda: None) -> int:
        return self._in_blocks(name, where, before_commit, lambda record, _, ids: self._remove(record, ids))

    def patch(
        self,
        name: str,
        which: Sequence[str] | Filter,
        changes: Changes,
        bounds: Bounds = BOUNDS,
        before_commit: Callable[[], None] = lambda: None,
    ) -> int:
        where: Filter = In(ID, tuple(which)) if isinstance(which, Sequence) else which
        return self._in_blocks(name, where, before_commit, partial(self._patch, changes=changes, bounds=bounds))

    def _in_blocks(
        self,
        name: str,
        where: Filter,
        before_commit: Callable[[], None],
        change: Callable[[Record, Rows, list[str]], None],
    ) -> int:
        """Call `change` with the ids of all documents that match `where`, in blocks. Return the number of documents.

        The documents are in the order of their ids. `before_commit` is called before each block.
        """
        before_commit()
        total, after = 0, ""
        while True:
            with self._registry.changing(name) as record:
                table = self._collections.live(record)
                found = table.first_rows(["id", "document"], table.matching(where), after, TOGETHER) if table else []
                if table is None or not found:
                    return total
                before_commit()
                change(record, table, [row["document"] for row in found])
            total, after = total + len(found), found[-1]["id"]

    def _patch(self, record: Record, table: Rows, ids: list[str], changes: Changes, bounds: Bounds) -> None:
        patched = []
        documents: dict[str, Document] = {}
        for block in table.each([*COPIED, VECTOR], f"document in {literals(ids)}"):
            for row in block:
                if row["passage"] == 0:
                    documents[row["document"]] = changed(unread(row), changes, bounds)
                patched.append(described(row, documents[row["document"]]))
        if not record.expiring and isinstance(changes.expires_at, int):
            record = self._registry.write(replace(record, expiring=True))
        self._uploads.note(record.name, ids)
        self._forget_fresh(record, ids)
        table.upsert(patched)

    def remove_expired(self) -> None:
        for record in self._registry.records():
            try:
                while record.expiring and self._remove_expired(record.name):
                    pass
            except Stopped:
                raise
            except NotFound:  # dropped since its record was read
                continue
            except ServiceError as error:
                log.warning("corpus %r keeps expired documents: %s", record.name, error)

    def _remove_expired(self, name: str) -> bool:
        """Remove some of the expired documents of a corpus, and return whether there were any."""
        with self._registry.changing(name) as record:
            if record.table is None:
                return False
            table, expired = self._collections.rows(record), f"expires_at <= {now()}"
            found = [row["document"] for row in table.first_rows(["document"], expired, limit=TOGETHER)]
            if found:
                self._forget_fresh(record, found)
                table.delete_rows(both(expired, f"document in {literals(found)}"))
        return bool(found)

    def _bound(self, record: Record, content: Content) -> Record:
        """Return the record with a table that fits the vectors of `content`.

        A corpus without documents gets a new table if it has no table, or if its table has another encoder or
        dimension.

        Raises:
            Conflict: the corpus has documents of another encoder.
            Conflict: the vectors of the corpus or of `content` come with documents (`OWN`), and the other's vectors
                are an encoder's or have another dimension.
        """
        dim = content.vectors.shape[1]
        if record.table and (record.table.fingerprint, record.table.dim) == (content.fingerprint, dim):
            return record
        if OWN in (record.fingerprint, content.fingerprint):
            check_bound(record.corpus, content.fingerprint, dim)
        if record.table and self._collections.size(record).documents:
            raise Conflict(
                f"the corpus was embedded by another bundle ({record.fingerprint}, {record.table.dim} dimensions)"
            )
        table = self._collections.create(record, content.fingerprint, dim)
        return self._collections.clean(self._registry.write(record.with_table(table)))

    def _remove(self, record: Record, ids: Sequence[str]) -> None:
        self._uploads.note(record.name, ids)
        self._forget_fresh(record, ids)
        self._collections.rows(record).delete(ids, split=record.split)

    def _forget_fresh(self, record: Record, ids: Sequence[str]) -> None:
        if record.fresh:
            self._collections.rows(record, record.fresh).delete(ids, split=record.split)

    @staticmethod
    def _remove_tails(table: Rows, made: Sequence[dict[str, object]]) -> None:
        """Remove the passages that only an earlier, longer version of a document had.

        `made` are all rows of the new versions of the documents.
        """
        by_count: defaultdict[int, list[str]] = defaultdict(list)
        for row in made:
            if row["passage"] == 0:
                by_count[int(str(row["passages"]))].append(str(row["document"]))
        for count, ids in by_count.items():
            table.delete_rows(f"passage >= {count} and document in {literals(ids)}")

    # Accepted uploads.

    def accept(self, name: str, job: str) -> None:
        self._registry.read(name)
        self._uploads.accept(name, job)

    def accepted(self, name: str) -> list[str]:
        return self._uploads.accepted(name)

    def release(self, name: str, job: str) -> None:
        self._uploads.release(name, job)

    # Re-embedding. A second collection, the fresh one, gets all rows with new vectors. Each write removes its documents
    # from the fresh collection, whose rows are therefore always rows of the corpus. The fresh collection is complete
    # when it has as many rows as the corpus.

    def stale(self, name: str, fingerprint: str, limit: int) -> list[tuple[PassageKey, str]]:
        record = self._registry.read(name)
        if record.table is None or record.fingerprint == fingerprint:
            return []
        table, fresh = self._collections.rows(record), self._fresh(record, fingerprint)
        after = self._compared.get(table.collection, "")
        found = _missing(table, fresh, after, limit)
        if not found and after:  # passages before `after` may have been written meanwhile, or not refreshed
            found = _missing(table, fresh, "", limit)
        self._compared[table.collection] = found[-1]["id"] if found else ""
        return [(_key_with_text(row), passage_text(row)) for row in found]

    def refresh(self, name: str, fingerprint: str, keys: Sequence[PassageKey], vectors: Floats) -> None:
        with self._registry.changing(name) as record:
            if record.table is None:
                return
            fresh = self._fresh(record, fingerprint) or self._new_fresh(record, fingerprint, vectors.shape[1])
            by_key = dict(zip(map(str, keys), vectors, strict=True))
            copied = self._collections.rows(record).get([key.rpartition(" ")[0] for key in by_key], COPIED)
            fresh.upsert({**row, VECTOR: by_key[key]} for row in copied if (key := _key_with_text(row)) in by_key)

    def read_fresh(self, name: str) -> None:  # noqa: ARG002
        return None

    def swap(self, name: str, fingerprint: str, beside: object = None) -> bool:  # noqa: ARG002
        with self._registry.changing(name) as record:
            if record.fingerprint == fingerprint:
                return True
            if record.table is None:
                self._registry.write(record.renewed(fingerprint=fingerprint, dim=None))
                return True
            fresh = self._fresh(record, fingerprint)
            if fresh is None or record.fresh is None:
                return False
            passages = fresh.count()
            if passages < self._collections.rows(record).count():
                return False
            swapped = replace(record.with_table(record.fresh), fresh=None)
            self._collections.clean(self._registry.write(swapped))
        self._recall.count(swapped, passages)
        return True

    def _fresh(self, record: Record, fingerprint: str) -> Rows | None:
        if record.fresh is None or record.fresh.fingerprint != fingerprint:
            return None
        return self._collections.rows(record, record.fresh)

    def _new_fresh(self, record: Record, fingerprint: str, dim: int) -> Rows:
        spent = (*record.spent, record.fresh.collection) if record.fresh else record.spent
        table = self._collections.create(record, fingerprint, dim)
        record = self._collections.clean(self._registry.write(replace(record, fresh=table, spent=spent)))
        return self._collections.rows(record, table)


def _missing(table: Rows, fresh: Rows | None, after: str, limit: int) -> list[Mapping[str, Any]]:
    """Return up to `limit` rows of `table` that are missing in `fresh`, beginning after the key `after`.

    If `fresh` is None, all rows are missing.
    """
    found: list[Mapping[str, Any]] = []
    for block in table.each(WHOLE, after=after):
        there = {row["id"] for row in fresh.get([row["id"] for row in block], ["id"])} if fresh else set()
        found += [row for row in block if row["id"] not in there]
        if len(found) >= limit:
            break
    return found[:limit]


def _key_with_text(row: Mapping[str, Any]) -> str:
    """Return the row's primary key and a digest of the passage's text, with a space between them.

    If a document replaces another, the passages of both have the same primary keys. Without the digest, `refresh` could
    store the vector of the old text for the new text.
    """
    return f"{row['id']} {blake2b(passage_text(row).encode(), digest_size=8).hexdigest()}"
