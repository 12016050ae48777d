"""A corpus in use: its writes, committed in groups, and its index, which follows them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from serving.cancelling import for_others, uninterrupted
from serving.errors import Damaged, NotFound
from serving.indexes.live import LiveIndex
from serving.indexes.reading import Read
from serving.ports import Change, Content, Corpus, Store, Write
from serving.stores.failures import naming

log = logging.getLogger(__name__)

OpenIndex = Callable[[Corpus, Read | None], LiveIndex]
"""Function that opens the index of a corpus. It starts from vectors that were read before, if any."""


@dataclass(eq=False)
class _Pending:
    """A write that waits for its commit. After the commit it has the outcome."""

    write: Write
    outcome: Change | Exception | None = None


class OpenCorpus:
    """An open corpus. Its lock covers both commits and index updates, so their orders are the same.

    The thread that has the lock commits all waiting writes. Concurrent uploads therefore share one wait for the disk.
    """

    def __init__(self, store: Store, name: str, open_index: OpenIndex) -> None:
        self._store = store
        self._name = name
        self._open_index = open_index
        self._lock = threading.RLock()
        self._pending: deque[_Pending] = deque()
        self._gone = False
        self.copying = threading.Lock()
        """Lock for copies, which take long. To replace or drop the file, take this lock before the corpus's main lock,
        so that reads and writes don't wait for a copy."""
        self.live: LiveIndex | None = None
        """The index, if it is open; None for a corpus that has never contained a document."""
        self.removals = 0
        """Number of writes that removed passages. If it changes between two reads, their results may be
        inconsistent."""
        self.damage: str | None = None
        """The reason why the index can't be opened, if only a new file would help. Writes are then refused, because no
        search would find them."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, for steps that must not run between a commit and the commit's index update.

        Raises:
            NotFound: the corpus was dropped, maybe while this waited.
        """
        with self._lock:
            self.check_there()
            yield

    def check_there(self) -> None:
        """Raise `NotFound` if the corpus was dropped."""
        if self._gone:
            raise NotFound(f"there is no corpus {self._name!r}")

    def write(self, write: Write) -> Change:
        """Commit `write` together with other waiting writes. On return, every search that starts sees it.

        Raises:
            Damaged: the index can't be opened, so no search would find the write.
        """
        mine = _Pending(write)
        self._pending.append(mine)
        with self.locked(), uninterrupted():  # a read of the index must not be cancelled: the write is committed
            if mine.outcome is None:
                self._commit([self._pending.popleft() for _ in range(len(self._pending))])
        if isinstance(mine.outcome, Exception):
            raise mine.outcome
        assert mine.outcome is not None, "see _commit"
        return mine.outcome

    def index(self, beside: Read | None = None) -> LiveIndex | None:
        """Return the index, opening it if necessary. The lock must be held.

        With `beside`, the vectors were read before, so opening takes almost no time.
        """
        if self.live is None:
            try:
                corpus = self._store.corpus(self._name)
                if corpus.dim is not None:
                    with for_others():  # a caller with a short deadline must not stop the opening
                        self.live = self._open_index(corpus, beside)
            except Damaged as error:
                self.damage = error.message
                raise
            self.damage = None
        return self.live

    def close(self, *, gone: bool = False, erase: bool = False) -> None:
        """Close the index. `gone` means that the corpus no longer exists; `erase` also removes the index's files."""
        with self._lock:
            self._gone = self._gone or gone
            self.removals += 1
            live, self.live = self.live, None
            if live is not None:
                with naming(Path("indexes", self._name)):
                    live.close(erase=erase)

    def _commit(self, together: Sequence[_Pending]) -> None:
        """Commit these writes. Set the outcome of each, even on errors, because other threads wait for it."""
        try:
            if self.damage:
                raise Damaged(self.damage)
            outcomes = self._store.write(self._name, [pending.write for pending in together])
        except Exception as error:
            for pending in together:
                pending.outcome = error
            return
        for pending, outcome in zip(together, outcomes, strict=True):
            pending.outcome = outcome
        for pending in together:
            if isinstance(pending.outcome, Change):
                self._follow(pending.outcome, pending.write)

    def _follow(self, change: Change, write: Write) -> None:
        """Update the index. A failure here can't undo the write, which the store has committed."""
        self.removals += len(change.removed) > 0
        if self.live is None:
            return
        if isinstance(write, Content) and write.fingerprint != self.live.fingerprint:
            self.close()  # the corpus was empty: another encoder needs another index
            return
        try:
            if isinstance(write, Content):
                self.live.change(change.removed, change.added, change.vectors)
            else:
                self.live.remove(change.removed)
        except Exception:
            log.exception("the index of corpus %r could not be updated; it is opened anew", self._name)
            self.close()
