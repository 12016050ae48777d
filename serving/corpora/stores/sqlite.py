"""Corpora on disk, in a folder with one SQLite file per corpus. Only one process at a time can open the folder."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from itertools import chain, count
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from models.bundle.disk import fsync, make_folder
from models.runtimes.base import Floats
from serving.corpora.filters import Filter
from serving.corpora.ports import Ranking, Replacing, Stop, StoreError, never
from serving.corpora.stores.connections import MEND
from serving.corpora.stores.corpus_file import CorpusFile, Shared
from serving.corpora.values import (
    NO_OPTIONS,
    Blocks,
    Change,
    Chunking,
    Corpus,
    Counts,
    Document,
    Facets,
    Keys,
    KnownText,
    Map,
    Page,
    Passage,
    Place,
    Size,
    Sort,
    Span,
    WordOptions,
    Write,
)
from serving.errors import Conflict, Damaged, NotFound, ServiceError, Unhealthy
from serving.operations.bounds import BOUNDS, Bounds
from serving.operations.failpoints import reach
from serving.operations.files import disk_errors, move, remove, remove_side_files, with_side_files

log = logging.getLogger(__name__)
SUFFIX = ".sqlite"


class Refused(NamedTuple):
    """Reason why a file that existed at startup can't be served."""

    why: str
    """Message with the reason and the remedy."""
    damaged: bool
    """True if the file is damaged. Otherwise the file must stay, so no new corpus may have its name."""

    @classmethod
    def of(cls, path: Path, error: ServiceError | StoreError) -> Refused:
        why, damaged = str(error).replace(str(path), path.name), isinstance(error, Damaged)
        if isinstance(error, ServiceError) and not damaged:
            why = f"{why}; solve this problem and start again"
        return cls(why, damaged)

    def error(self) -> Unhealthy:
        """Return the error for callers."""
        return (Damaged if self.damaged else Unhealthy)(self.why)


class SqliteStore:
    """A `Store` in a folder. A corpus exists when its file has its final name.

    If this version can't serve a file, methods on its corpus raise `Damaged` or `Unhealthy` and name the file. All
    remaining corpora are served. Only `drop` and `adopt` delete the file of a corpus. If the file is damaged, it gets
    another name instead.

    Only the most recently used files are open, because the number of open files of a process is limited.

    Raises:
        StoreError: the folder can't be read and written, or another process has locked it.
    """

    def __init__(self, folder: Path, synchronous: str = "FULL", shared: Shared | None = None) -> None:
        self._folder = folder
        self._synchronous = synchronous
        self._shared = shared or Shared()
        self._lock = threading.Lock()
        self._files: dict[str, CorpusFile] = {}
        self._refused: dict[str, Refused] = {}
        self._held = ExitStack()
        try:
            make_folder(folder)
            self._held.callback(os.close, hold(folder))
            sweep(folder)
            paths = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))
        except OSError as error:
            raise StoreError(f"the folder {folder} can't be used: {error}") from error
        try:
            for path in paths:
                self._open(path)
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        return sorted([*self._files, *self._refused])

    def create(self, corpus: Corpus) -> bool:
        with self._lock:
            self._check_served(corpus.name)
            if corpus.name not in self._files:
                self._files[corpus.name] = make(self._place(corpus.name), corpus, self._synchronous, self._shared)
                return True
        self.describe(corpus)
        return False

    def describe(self, corpus: Corpus) -> None:
        """Implement `Store.describe`. Wait only for writers of this corpus."""
        self._file(corpus.name).describe(corpus)

    def corpus(self, name: str) -> Corpus:
        return self._file(name).corpus()

    def described(self, name: str) -> tuple[Corpus, Size]:
        """Return the corpus and its size, including the bytes on disk."""
        return self._file(name).described()

    def drop(self, name: str) -> None:
        """Delete a corpus with its file, even if the disk is full. The write-ahead log may be deleted later."""
        with self._lock:
            if name in self._refused:
                path = self._place(name)
                with disk_errors(path):
                    remove(path)
                del self._refused[name]
                return
            file = self._file(name)
            with file.set_aside(checkpointed=False):
                reach("store.before-drop")
                if file.damaged:
                    keep(file.path)
                file.path.unlink()
                file.close()
                del self._files[name]
                fsync(self._folder)
                reach("store.after-drop")
                remove_side_files(file.path)

    def rename(self, name: str, to: str) -> None:
        """Implement `Store.rename`.

        One commit changes the name in the file, and the file is renamed afterwards. If the server is killed in between,
        it undoes the commit at its next start.
        """
        with self._lock:
            file = self._file(name)
            if to in self._files or to in self._refused:
                raise Conflict(f"there is already a corpus {to!r}")
            path = self._place(to)
            file.call(to, former=name)
            try:
                with file.set_aside():
                    reach("store.before-rename")
                    move(file.path, path)
                    file.close()
            except BaseException:
                if file.path.exists():
                    file.call(name, former=None)
                    raise
            reach("store.after-rename")
            del self._files[name]
            self._files[to] = renamed = CorpusFile(path, self._synchronous, shared=self._shared)
            with suppress(ServiceError):  # the former name only matters if the file is copied under that name
                renamed.call(to, former=None)

    def write(self, name: str, writes: Sequence[Write]) -> list[Change | ServiceError]:
        return self._file(name).write(writes)

    def accepted(self, name: str) -> list[str]:
        return self._file(name).accepted()

    def accept(self, name: str, job: str) -> None:
        self._file(name).accept(job)

    def release(self, name: str, job: str) -> None:
        self._file(name).release(job)

    def embedded(
        self, name: str, texts: Sequence[str], chunking: Chunking | None, fingerprint: str
    ) -> list[KnownText | None]:
        return self._file(name).embedded(texts, chunking, fingerprint)

    def document(self, name: str, document: str) -> Document:
        return self._file(name).document(document)

    def passages(self, name: str, keys: Sequence[int]) -> dict[int, Passage]:
        return self._file(name).passages(keys)

    def owners(self, name: str, keys: Sequence[int]) -> dict[int, Document]:
        return self._file(name).owners(keys)

    def page(self, name: str, after: int, limit: int, where: Filter | None = None) -> Page:
        return self._file(name).page(after, limit, where)

    def sorted_page(
        self, name: str, orders: Sequence[Sort], after: Place | None, limit: int, where: Filter | None = None
    ) -> Page:
        return self._file(name).sorted_page(orders, after, limit, where)

    def expired(self, name: str) -> Keys:
        return self._file(name).expired()

    def keys(self, name: str) -> Keys:
        return self._file(name).keys()

    def matching(self, name: str, where: Filter) -> Keys:
        return self._file(name).matching(where)

    def unmatched(self, name: str, where: Filter) -> list[str]:
        return self._file(name).unmatched(where)

    def ids_matching(self, name: str, where: Filter) -> list[str]:
        return self._file(name).ids_matching(where)

    def facets(self, name: str, values: int) -> Facets:
        return self._file(name).facets(values)

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
        return self._file(name).counts(query, where, paths, values, options=options)

    def words(
        self, name: str, query: str, k: int, where: Filter | None = None, options: WordOptions = NO_OPTIONS
    ) -> Ranking:
        return self._file(name).words(query, k, where, options)

    def highlights(
        self, name: str, texts: Sequence[str], query: str, options: WordOptions = NO_OPTIONS
    ) -> list[list[Span]]:
        return self._file(name).highlights(texts, query, options)

    def vectors(self, name: str, keys: Sequence[int] | None = None, after: int = 0) -> Blocks:
        return self._file(name).vectors(keys, after)

    def tombstones(self, name: str, upto: int) -> Keys:
        return self._file(name).tombstones(upto)

    def bury(self, name: str, keys: Keys) -> None:
        self._file(name).bury(keys)

    def last_key(self, name: str) -> int:
        return self._file(name).last_key()

    def stale(self, name: str, fingerprint: str, limit: int) -> list[tuple[int, str]]:
        return self._file(name).stale(fingerprint, limit)

    def refresh(self, name: str, fingerprint: str, keys: Keys, vectors: Floats) -> None:
        self._file(name).refresh(fingerprint, keys, vectors)

    def fresh(self, name: str) -> Blocks:
        return self._file(name).fresh()

    def swap(self, name: str, fingerprint: str) -> bool:
        return self._file(name).swap(fingerprint)

    def keep_map(self, name: str, found: Map, generation: str) -> None:
        self._file(name).keep_map(found, generation)

    def kept_map(self, name: str) -> Map | None:
        return self._file(name).kept_map()

    def give_back(self, name: str, least: int = 0) -> None:
        self._file(name).give_back(least)

    def copy(self, name: str, to: Path, stop: Stop = never) -> tuple[Corpus, Size]:
        return self._file(name).copy(to, stop)

    def adopt(
        self,
        name: str,
        file: Path,
        replacing: Replacing | None = None,
        stop: Stop = never,
        bounds: Bounds = BOUNDS,
    ) -> None:
        """Implement `Store.adopt`. Reads and writes wait while the files are exchanged."""
        prepare(name, file, bounds, stop)
        with replacing(vectors(file, stop)) if replacing else nullcontext(), self._lock:
            if held := self._files.get(name):
                with held.set_aside(checkpointed=not held.damaged):
                    if held.damaged:
                        keep(held.path)
                    else:
                        carry(held.path, file)
                    adopt(file, held.path)
            else:
                path = self._place(name)
                with disk_errors(path):
                    adopt(file, path)
                self._files[name] = CorpusFile(path, self._synchronous, shared=self._shared)
                self._refused.pop(name, None)

    def verify(self, name: str) -> list[str]:
        if refused := self._refused.get(name):
            return [refused.why]
        wrong = self._file(name).verify()
        return [*wrong[:-1], f"{wrong[-1]}; {MEND}"] if wrong else []

    def size(self, name: str) -> Size:
        return self._file(name).size()

    def close(self) -> None:
        """Close every file permanently, and unlock the folder."""
        for file in self._files.values():
            file.close()
        self._files = {}
        self._held.close()

    def _file(self, name: str) -> CorpusFile:
        if file := self._files.get(name):
            return file
        self._check_served(name)
        raise NotFound(f"there is no corpus {name!r}")

    def _check_served(self, name: str) -> None:
        if refused := self._refused.get(name):
            raise refused.error()

    def _place(self, name: str) -> Path:
        """Return the path for a new corpus. If this path has a damaged file, also link the file to a second name.

        Raises:
            Conflict, Damaged: the file at this path must not be replaced.
        """
        path = self._folder / f"{name}{SUFFIX}"
        if refused := self._refused.get(name):
            if not refused.damaged:
                raise Damaged(refused.why)
            with disk_errors(path):
                keep(path)
        elif path.exists():
            raise Conflict(
                f"{path.name} was added to the folder of the corpora after the server started: restart the server"
            )
        return path

    def _open(self, path: Path) -> None:
        name, file = path.name.removesuffix(SUFFIX), None
        try:
            file = CorpusFile(path, self._synchronous, shared=self._shared)
            held = file.corpus().name
            if held != name and not file.take_back(name):
                raise StoreError(f"{path}: contains the corpus {held!r}; rename the file to that name and start again")
            self._files[name] = file
        except (StoreError, ServiceError) as error:
            self._refused[name] = refused = Refused.of(path, error)
            log.error("not served: %s", refused.why)
            if file:
                file.close()


class MemoryStore(SqliteStore):
    """A `SqliteStore` on a temporary folder, which never waits for the disk."""

    def __init__(self, folder: Path | None = None) -> None:  # noqa: ARG002 - every store is opened on a folder
        temporary = mkdtemp(prefix="corpora-")
        self._removed = weakref.finalize(self, shutil.rmtree, temporary)
        super().__init__(Path(temporary), synchronous="OFF")

    def close(self) -> None:
        super().close()
        self._removed()


# The following functions work on whole files of corpora, and lock their folder.


def hold(folder: Path) -> int:
    """Lock `folder` for this process, and return the lock's file descriptor.

    Only one process may use the folder, because indexes are in memory. Another process would not see changes of an
    index.

    Raises:
        StoreError: another process holds the lock.
    """
    held = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise StoreError(f"{folder}: in use by another server or command") from None
    return held


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Convert a `ServiceError`, which is for callers, to a `StoreError` that says why the file can't be used."""
    try:
        yield
    except ServiceError as error:
        raise StoreError(f"{path}: {error.__cause__ or error}") from error


def make(path: Path, corpus: Corpus, synchronous: str, shared: Shared | None = None) -> CorpusFile:
    """Create the file of a new corpus. The file gets its final name when the corpus is committed.

    After a failure, no file remains. `sweep` deletes unfinished files of killed processes.
    """
    part = path.with_name(f".{path.name}.part")
    with disk_errors(path):
        try:
            with closing(CorpusFile(part, synchronous, new=True)) as made:
                made.create(corpus)
                with made.set_aside():
                    fsync(part)
            reach("store.before-create")
            move(part, path)
            reach("store.after-create")
            return CorpusFile(path, synchronous, shared=shared)
        except BaseException:
            remove(part)
            remove(path)
            raise


def sweep(folder: Path) -> None:
    """Delete the unfinished files of killed processes."""
    for left in folder.glob(f".*{SUFFIX}.part*"):
        left.unlink()


def keep(path: Path) -> None:
    """Link a damaged file and its side files to a second name, so that a new file can take the original name."""
    names = (path.with_name(f"{path.name}.damaged{number}") for number in chain([""], count(2)))
    kept = next(name for name in names if not any(one.exists() for one in with_side_files(name)))
    for file, second in zip(with_side_files(path), with_side_files(kept), strict=True):
        if file.exists():
            os.link(file, second)
    fsync(path.parent)
    log.warning("%s is damaged: kept as %s", path, kept.name)


def prepare(name: str, file: Path, bounds: Bounds = BOUNDS, stop: Stop = never) -> None:
    """Check the corpus in `file`, migrate it to the current format, rename it to `name`, and empty its log.

    Raises:
        StoreError: `file` is not a corpus or exceeds `bounds`, or `stop` interrupted the check.
    """
    if not file.is_file():
        raise StoreError(f"{file}: there is no such file")
    with refusing(file):
        opened = CorpusFile(file, foreign=bounds, stop=stop)
        try:
            if wrong := opened.verify():
                raise StoreError(f"{file}: damaged: {wrong[0]}")
            opened.rename(name)
            with opened.set_aside():
                fsync(file)
        finally:
            opened.close()


def vectors(file: Path, stop: Stop = never) -> Blocks:
    """Yield all vectors of the corpus in `file`. After the last block, the write-ahead log of `file` is empty."""
    with closing(CorpusFile(file, stop=stop)) as opened:
        yield from opened.vectors(None, 0)


def carry(old: Path, new: Path) -> None:
    """Copy the records of pending uploads from the corpus in `old` to the corpus in `new`. `old` must be closed."""
    waiting: list[str] = []
    with suppress(Damaged), closing(CorpusFile(old)) as before:
        waiting = before.accepted()
    with closing(CorpusFile(new)) as after:
        for job in waiting:
            after.accept(job)
        with after.set_aside():
            fsync(new)


def adopt(file: Path, to: Path) -> None:
    reach("store.before-adopt")
    move(file, to)
    reach("store.after-adopt")
