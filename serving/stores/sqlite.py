"""Corpora on disk: a folder with one SQLite file each, held by one process at a time."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.disk import fsync
from serving.errors import Conflict, NotFound
from serving.ports import Change, Content, Corpus, Document, Floats, Keys, Size, StoreError
from serving.stores.corpus_file import CorpusFile

SUFFIX = ".sqlite"


class SqliteStore:
    """See `Store`. A corpus exists once the row that describes it is committed in its file.

    Raises:
        StoreError: the folder can't be read and written, another process holds it, or a file in it is not a corpus
            that this version can serve. Nothing but what a killed creation or removal left is ever removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._files: dict[str, CorpusFile] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._held = _hold(folder)
            paths = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))
        except OSError as error:
            raise StoreError(f"the folder {folder} can't be used: {error}") from error
        try:
            for path in paths:
                self._open_or_sweep(path)
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        """Sorted."""
        return sorted(self._files)

    def create(self, corpus: Corpus, content: Content | None = None) -> bool:
        """See `Store`. Killed half-way it leaves a file without a corpus, which the next start removes."""
        with self._lock:
            if file := self._files.get(corpus.name):
                file.describe(corpus.description, corpus.recall_target)
                return False
            path = self._folder / f"{corpus.name}{SUFFIX}"
            if path.exists():
                raise Conflict(f"{path.name} was put into the folder of the corpora since the start: start again")
            file = CorpusFile(path)
            try:
                file.create(corpus, content)
            except BaseException:
                _remove(file)
                raise
            fsync(self._folder)
            self._files[corpus.name] = file
            return True

    def corpus(self, name: str) -> Corpus:
        """See `Store`."""
        if corpus := self._file(name).corpus():
            return corpus
        raise NotFound(f"there is no corpus {name!r}")

    def drop(self, name: str) -> None:
        """See `Store`."""
        with self._lock:
            file = self._file(name)
            file.retire()
            del self._files[name]
            _remove(file)

    def put(self, name: str, content: Content) -> Change:
        """See `Store`."""
        return self._file(name).put(content)

    def delete(self, name: str, keys: Sequence[int]) -> None:
        """See `Store`."""
        self._file(name).delete(keys)

    def key(self, name: str, document: str) -> int:
        """See `Store`."""
        return self._file(name).key(document)

    def document(self, name: str, document: str) -> Document:
        """See `Store`."""
        return self._file(name).document(document)

    def documents(self, name: str, keys: Sequence[int]) -> dict[int, Document]:
        """See `Store`."""
        return self._file(name).documents(keys)

    def page(self, name: str, after: int, limit: int) -> list[tuple[int, Document]]:
        """See `Store`."""
        return self._file(name).page(after, limit)

    def metadata(self, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """See `Store`."""
        return self._file(name).metadata()

    def vectors(self, name: str, keys: Sequence[int] | None = None) -> Iterator[tuple[Keys, Floats]]:
        """See `Store`."""
        return self._file(name).vectors(keys)

    def size(self, name: str) -> Size:
        """See `Store`; bytes on disk."""
        return self._file(name).size()

    def close(self) -> None:
        """Close every file and let the folder go."""
        for file in self._files.values():
            file.close()
        self._files = {}
        os.close(self._held)

    def _file(self, name: str) -> CorpusFile:
        if file := self._files.get(name):
            return file
        raise NotFound(f"there is no corpus {name!r}")

    def _open_or_sweep(self, path: Path) -> None:
        file, name = CorpusFile(path), path.name.removesuffix(SUFFIX)
        corpus = file.corpus()
        if corpus is None:
            _remove(file)
        elif corpus.name == name:
            self._files[name] = file
        else:
            file.close()
            raise StoreError(f"{path}: holds the corpus {corpus.name!r}; give the file its name back")


def _hold(folder: Path) -> int:
    """Two writers would not see each other's documents: their indexes are in memory."""
    held = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise StoreError(f"{folder}: in use by another server") from None
    return held


def _remove(file: CorpusFile) -> None:
    """The log first: a log left beside a later file of the same name would be replayed into it."""
    file.close()
    for suffix in ("-journal", "-wal", "-shm", ""):
        file.path.with_name(file.path.name + suffix).unlink(missing_ok=True)
    fsync(file.path.parent)
