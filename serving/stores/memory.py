"""Corpora in dictionaries, gone with the process: for tests and for trying things out."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from serving.errors import Conflict, NotFound
from serving.ports import Change, Content, Corpus, Document, Floats, Keys, Size


@dataclass
class _Shelf:
    corpus: Corpus
    last_key: int = 0
    rows: dict[int, tuple[Document, Floats]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)


class MemoryStore:
    """See `Store`. One lock around everything."""

    def __init__(self, folder: Path | None = None) -> None:  # noqa: ARG002 - every store is opened on a folder
        self._shelves: dict[str, _Shelf] = {}
        self._lock = threading.RLock()

    def names(self) -> list[str]:
        """Sorted."""
        return sorted(self._shelves)

    def create(self, corpus: Corpus, content: Content | None = None) -> bool:
        """See `Store`."""
        with self._lock:
            if shelf := self._shelves.get(corpus.name):
                given = {"description": corpus.description, "recall_target": corpus.recall_target}
                changes = {name: value for name, value in given.items() if value is not None}
                shelf.corpus = replace(shelf.corpus, **changes)  # type: ignore[arg-type]
                return False
            self._shelves[corpus.name] = _Shelf(corpus)
            if content:
                self.put(corpus.name, content)
            return True

    def corpus(self, name: str) -> Corpus:
        """See `Store`."""
        return self._shelf(name).corpus

    def drop(self, name: str) -> None:
        """See `Store`."""
        with self._lock:
            self._shelf(name)
            del self._shelves[name]

    def put(self, name: str, content: Content) -> Change:
        """See `Store`."""
        with self._lock:
            shelf = self._shelf(name)
            if shelf.rows and shelf.corpus.fingerprint != content.fingerprint:
                raise Conflict(f"corpus {name!r} was embedded by another bundle ({shelf.corpus.fingerprint})")
            dim = content.vectors.shape[1]
            shelf.corpus = replace(shelf.corpus, fingerprint=content.fingerprint, dim=dim)
            removed = [shelf.keys.pop(new.id) for new in content.documents if new.id in shelf.keys]
            for key in removed:
                del shelf.rows[key]
            first = shelf.last_key + 1
            shelf.last_key += len(content.documents)
            for key, (document, vector) in enumerate(zip(content.documents, content.vectors, strict=True), start=first):
                shelf.rows[key], shelf.keys[document.id] = (document, vector.copy()), key
            return Change(np.array(removed, dtype=np.int64), np.arange(first, shelf.last_key + 1))

    def delete(self, name: str, keys: Sequence[int]) -> None:
        """See `Store`."""
        with self._lock:
            shelf = self._shelf(name)
            for key in keys:
                if row := shelf.rows.pop(key, None):
                    del shelf.keys[row[0].id]

    def key(self, name: str, document: str) -> int:
        """See `Store`."""
        with self._lock:
            if (key := self._shelf(name).keys.get(document)) is None:
                raise NotFound(f"corpus {name!r} has no document {document!r}")
            return key

    def document(self, name: str, document: str) -> Document:
        """See `Store`."""
        with self._lock:
            return self._shelf(name).rows[self.key(name, document)][0]

    def documents(self, name: str, keys: Sequence[int]) -> dict[int, Document]:
        """See `Store`."""
        with self._lock:
            rows = self._shelf(name).rows
            return {key: rows[key][0] for key in keys if key in rows}

    def page(self, name: str, after: int, limit: int) -> list[tuple[int, Document]]:
        """See `Store`."""
        with self._lock:
            rows = self._shelf(name).rows.items()
            return list(islice(((key, row[0]) for key, row in rows if key > after), limit))

    def metadata(self, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """See `Store`."""
        with self._lock:
            rows = list(self._shelf(name).rows.items())
        return ((key, document.metadata) for key, (document, _) in rows)

    def vectors(self, name: str, keys: Sequence[int] | None = None) -> Iterator[tuple[Keys, Floats]]:
        """See `Store`."""
        with self._lock:
            rows = self._shelf(name).rows
            chosen = list(rows) if keys is None else sorted(set(keys) & rows.keys())
            vectors = [rows[key][1] for key in chosen]
        if chosen:
            yield np.array(chosen, dtype=np.int64), np.stack(vectors)

    def size(self, name: str) -> Size:
        """See `Store`; bytes of texts and vectors."""
        with self._lock:
            rows = self._shelf(name).rows.values()
            return Size(len(rows), sum(len(doc.text.encode()) + vector.nbytes for doc, vector in rows))

    def close(self) -> None:
        """Nothing to keep."""

    def _shelf(self, name: str) -> _Shelf:
        if name not in self._shelves:
            raise NotFound(f"there is no corpus {name!r}")
        return self._shelves[name]
