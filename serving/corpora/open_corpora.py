"""The corpora in use, by name. They can be created, replaced and dropped during reads and writes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from models.bundle import Manifest
from serving.bounds import BOUNDS, Bounds
from serving.corpora.open_corpus import OpenCorpus
from serving.corpora.opening import Indexes
from serving.errors import Conflict, NotFound, Stopped
from serving.ports import Blocks, Corpus, IndexSize, Stop, Store, never


class OpenCorpora:
    """The corpora of a store, each with its index."""

    def __init__(self, store: Store, indexes: Indexes) -> None:
        self._store = store
        self._indexes = indexes
        self._open = {name: self._opened(name) for name in store.names()}
        self._naming = threading.Lock()
        """Lock for every change of `_open`."""

    def named(self, name: str) -> OpenCorpus:
        """Return the corpus of this name.

        Raises:
            NotFound: there is no such corpus.
        """
        if corpus := self._open.get(name):
            return corpus
        raise NotFound(f"there is no corpus {name!r}")

    @contextmanager
    def locked(self, name: str) -> Iterator[OpenCorpus]:
        corpus = self.named(name)
        with corpus.locked():
            yield corpus

    def index_sizes(self) -> dict[str, IndexSize]:
        open_now = {name: corpus.live for name, corpus in list(self._open.items())}
        return {
            name: IndexSize(0, 0) if live is None else IndexSize(len(live), live.nbytes)
            for name, live in open_now.items()
        }

    def create(self, corpus: Corpus, encoder: Manifest | None = None) -> bool:
        name = corpus.name
        if encoder:
            corpus = replace(corpus, fingerprint=encoder.fingerprint, dim=encoder.dim)
        if name in self._open:
            with suppress(NotFound):  # it was dropped meanwhile
                self._store.describe(corpus)
                return False
        with self._naming:
            created = self._store.create(corpus)
            if created:
                self._open[name] = self._opened(name)
        return created

    def drop(self, name: str) -> None:
        corpus = self.named(name)
        with corpus.copying, corpus.locked(), self._naming:
            corpus.close(erase=True)  # first: no later corpus of that name may find this index
            self._indexes.erase(name)
            try:
                self._store.drop(name)
            finally:
                if name not in self._store.names():
                    corpus.close(gone=True)
                    del self._open[name]

    def adopt(self, name: str, file: Path, stop: Stop = never, bounds: Bounds = BOUNDS) -> None:
        self._store.adopt(name, file, partial(self._replaced, name, stop), stop, bounds)

    def close(self) -> None:
        for corpus in self._open.values():
            corpus.close()

    @contextmanager
    def _replaced(self, name: str, stop: Stop, vectors: Blocks) -> Iterator[None]:
        """Read the new file's `vectors`, then let the block replace the corpus's file.

        Writes and searches wait during the block, and continue with the new corpus.

        Raises:
            Conflict, NotFound: the corpus was created, or dropped, at the same moment.
        """
        with self._indexes.reading(vectors) as beside, ExitStack() as held:
            before = self._open.get(name)
            if before:
                held.enter_context(before.copying)
                held.enter_context(before.locked())
            held.enter_context(self._naming)
            if stop():
                raise Stopped(f"corpus {name!r} stays as it was")
            if self._open.get(name) is not before:
                raise Conflict(f"corpus {name!r} was created while it was being restored: restore it again")
            if before:
                before.close(erase=True)  # first: the restored corpus must not find this index
                self._indexes.erase(name)
            yield
            if before:
                before.damage = None
            else:
                self._open[name] = self._opened(name)
            self._open[name].index(beside)

    def _opened(self, name: str) -> OpenCorpus:
        def target() -> float:
            return self._store.corpus(name).wanted_recall

        return OpenCorpus(
            self._store, name, lambda corpus, beside: self._indexes.open(self._store, corpus, target, beside)
        )
