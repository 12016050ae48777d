"""Corpora on disk, in a folder with one SQLite file per corpus. Only one process at a time can open the folder."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext, suppress
from itertools import chain, count
from pathlib import Path
from tempfile import mkdtemp
from typing import Concatenate, ParamSpec, TypeVar

from models.bundle.disk import fsync, make_folder
from serving.corpora.ports import Replacing, Stop, StoreError, never
from serving.corpora.stores.connections import MEND
from serving.corpora.stores.corpus_file import CorpusFile, Shared
from serving.corpora.values import Blocks, Corpus
from serving.errors import Conflict, Damaged, NotFound, NotServed, ServiceError, Unhealthy
from serving.operations.bounds import BOUNDS, Bounds
from serving.operations.failpoints import reach
from serving.operations.files import disk_errors, move, remove, remove_side_files, with_side_files

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)
SUFFIX = ".sqlite"


def refusal(path: Path, error: ServiceError | StoreError) -> Unhealthy:
    """Return the error of a corpus whose file can't be served. The message has the reason and the remedy."""
    why = str(error).replace(str(path), path.name)
    if isinstance(error, Damaged):
        return Damaged(why)
    return NotServed(f"{why}; solve this problem and start again" if isinstance(error, ServiceError) else why)


def _on_file(method: Callable[Concatenate[CorpusFile, P], T]) -> Callable[Concatenate[SqliteStore, str, P], T]:
    """Convert `method` of a corpus's file to a method of a store.

    The new method gets the name of the corpus as its first argument.
    """

    def on_file(store: SqliteStore, name: str, /, *arguments: P.args, **options: P.kwargs) -> T:
        return method(store._file(name), *arguments, **options)

    return on_file


class SqliteStore:
    """A `Store` in a folder. A corpus exists when its file has its final name.

    If this version can't serve the file of a corpus, methods on this corpus raise `Damaged` or `NotServed`, and the
    message names the file. `verify` returns this message instead. All other corpora are served.

    Only `drop` and `adopt` remove the file of a corpus, even a damaged file. They delete an intact file, and rename a
    damaged file.

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
        self._refused: dict[str, Unhealthy] = {}
        """Errors of the files that could not be opened or served. Of these files, only damaged files may be replaced
        or dropped."""
        self._held = ExitStack()
        try:
            make_folder(folder)
            self._held.callback(os.close, hold(folder))
            for unfinished in folder.glob(f".*{SUFFIX}.part*"):  # files of killed processes; see `make`
                unfinished.unlink()
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
        """Update the settings of an existing corpus. Writers of other corpora do not delay this method."""
        self._file(corpus.name).describe(corpus)

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
                if file.damage:
                    keep(file.path)
                file.path.unlink()
                file.close()
                del self._files[name]
                fsync(self._folder)
                reach("store.after-drop")
                remove_side_files(file.path)

    def rename(self, name: str, to: str) -> None:
        """Implement `Store.rename`.

        First, one commit changes the name in the file. Then the file is renamed. If the server is killed in between,
        the server undoes the commit at its next start.
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
            self._open(path)
            with suppress(ServiceError):  # the former name only matters if the file is copied under that name
                self._file(to).call(to, former=None)

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
                with held.set_aside(checkpointed=not held.damage):
                    if held.damage:
                        keep(held.path)
                    else:
                        carry(held.path, file)
                    adopt(file, held.path)
            else:
                path = self._place(name)
                with disk_errors(path):
                    adopt(file, path)
                self._refused.pop(name, None)
                self._open(path)

    def damage(self, name: str) -> str:
        return self._file(name).damage

    def verify(self, name: str) -> list[str]:
        if refused := self._refused.get(name):
            return [refused.message]
        wrong = self._file(name).verify()
        return [*wrong[:-1], f"{wrong[-1]}; {MEND}"] if wrong else []

    # Methods on the file of one corpus. The first argument is the name of the corpus.

    corpus = _on_file(CorpusFile.corpus)
    described = _on_file(CorpusFile.described)
    write = _on_file(CorpusFile.write)
    accepted = _on_file(CorpusFile.accepted)
    accept = _on_file(CorpusFile.accept)
    release = _on_file(CorpusFile.release)
    embedded = _on_file(CorpusFile.embedded)
    document = _on_file(CorpusFile.document)
    passages = _on_file(CorpusFile.passages)
    owners = _on_file(CorpusFile.owners)
    page = _on_file(CorpusFile.page)
    sorted_page = _on_file(CorpusFile.sorted_page)
    expired = _on_file(CorpusFile.expired)
    keys = _on_file(CorpusFile.keys)
    matching = _on_file(CorpusFile.matching)
    unmatched = _on_file(CorpusFile.unmatched)
    ids_matching = _on_file(CorpusFile.ids_matching)
    facets = _on_file(CorpusFile.facets)
    counts = _on_file(CorpusFile.counts)
    words = _on_file(CorpusFile.words)
    highlights = _on_file(CorpusFile.highlights)
    vectors = _on_file(CorpusFile.vectors)
    tombstones = _on_file(CorpusFile.tombstones)
    bury = _on_file(CorpusFile.bury)
    last_key = _on_file(CorpusFile.last_key)
    stale = _on_file(CorpusFile.stale)
    refresh = _on_file(CorpusFile.refresh)
    fresh = _on_file(CorpusFile.fresh)
    swap = _on_file(CorpusFile.swap)
    keep_map = _on_file(CorpusFile.keep_map)
    kept_map = _on_file(CorpusFile.kept_map)
    give_back = _on_file(CorpusFile.give_back)
    copy = _on_file(CorpusFile.copy)
    size = _on_file(CorpusFile.size)

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
            raise type(refused)(refused.message)

    def _place(self, name: str) -> Path:
        """Return the path at which the file of a corpus is created, replaced or deleted.

        If the file at this path is damaged, also link it to a second name, so that it is kept.

        Raises:
            Conflict: the file at this path was added after the server started.
            Damaged: the file at this path can't be served for a reason other than damage, so it must stay in place.
        """
        path = self._folder / f"{name}{SUFFIX}"
        if refused := self._refused.get(name):
            if not isinstance(refused, Damaged):
                raise Damaged(refused.message)
            with disk_errors(path):
                keep(path)
        elif path.exists():
            raise Conflict(
                f"{path.name} was added to the folder of the corpora after the server started: restart the server"
            )
        return path

    def _open(self, path: Path) -> None:
        """Serve the file of a corpus, or record why it can't be served."""
        name, file = path.name.removesuffix(SUFFIX), None
        try:
            file = CorpusFile(path, self._synchronous, shared=self._shared)
            held = file.corpus().name
            if held != name and not file.take_back(name):
                raise StoreError(f"{path}: contains the corpus {held!r}; rename the file to that name and start again")
            self._files[name] = file
        except (StoreError, ServiceError) as error:
            self._refused[name] = refused = refusal(path, error)
            log.error("not served: %s", refused.message)
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
        raise StoreError(
            f"{folder}: in use by another server or command: stop it, choose another folder with --data, or send "
            "requests to the running server (by HTTP, or by `isosphere ingest --url`)"
        ) from None
    return held


def make(path: Path, corpus: Corpus, synchronous: str, shared: Shared | None = None) -> CorpusFile:
    """Create the file of a new corpus.

    The file gets its final name after the corpus is committed. After a failure, no file remains.
    """
    part = path.with_name(f".{path.name}.part")
    with disk_errors(path):
        try:
            # The commits need not be durable, because the whole file is synced before it gets its final name.
            with closing(CorpusFile(part, "OFF", new=True)) as made:
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
    """Check the corpus in `file`, migrate it to the current format, and rename the corpus to `name`.

    Afterwards, the write-ahead log of `file` is empty.

    Raises:
        StoreError: `file` is missing, damaged, not a corpus, or from a later version, or it exceeds `bounds`.
        StoreError: the disk fails, or `stop` interrupted the work.
        InsufficientStorage: the disk is full.
    """
    if not file.is_file():
        raise StoreError(f"{file}: there is no such file")
    try:
        with closing(CorpusFile(file, foreign=bounds, stop=stop)) as opened:
            if wrong := opened.verify():
                raise StoreError(f"{file}: damaged: {wrong[0]}")
            opened.rename(name)
            with opened.set_aside():
                fsync(file)
    except Unhealthy as error:
        raise StoreError(f"{file}: {error.__cause__ or error}") from error


def vectors(file: Path, stop: Stop = never) -> Blocks:
    """Yield all vectors of the corpus in `file`. After the last block, close the file and empty its write-ahead log."""
    with closing(CorpusFile(file, stop=stop)) as opened:
        yield from opened.vectors(None, 0)


def carry(old: Path, new: Path) -> None:
    """Copy the records of pending uploads from the corpus in `old` to the corpus in `new`. `old` must be closed.

    From a damaged file, nothing is copied.
    """
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
