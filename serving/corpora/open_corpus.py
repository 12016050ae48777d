"""A corpus in use: its writes, committed in groups, and the index that follows them."""

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
"""On what was read beside, where something was."""


@dataclass(eq=False)
class _Pending:
    """A write that waits for its commit, and then what came of it."""

    write: Write
    outcome: Change | Exception | None = None


class OpenCorpus:
    """Commits and index updates of one corpus happen together under its lock, so their orders are the same.

    Whoever has the lock commits all that waits for it: uploads that come together share one wait for the disk.
    """

    def __init__(self, store: Store, name: str, open_index: OpenIndex) -> None:
        self._store = store
        self._name = name
        self._open_index = open_index
        self._lock = threading.RLock()
        self._pending: deque[_Pending] = deque()
        self._gone = False
        self.copying = threading.Lock()
        """Around a copy, which takes long. Whoever wants its file to go takes it before the lock, which others want."""
        self.live: LiveIndex | None = None
        """The index, as far as it is open; None for a corpus that never held a document."""
        self.removals = 0
        """Writes that took passages away: what was read before one does not fit what is read after it."""
        self.damage: str | None = None
        """Why its index can't be opened, if nothing but another file mends that; nobody would find what is written."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Around what must not happen between a commit and what follows it.

        Raises:
            NotFound: it was dropped, maybe while this waited.
        """
        with self._lock:
            self.check_there()
            yield

    def check_there(self) -> None:
        """Refuse what can't be done without a corpus.

        Raises:
            NotFound: it was dropped.
        """
        if self._gone:
            raise NotFound(f"there is no corpus {self._name!r}")

    def write(self, write: Write) -> Change:
        """Commit it, with what others write at this moment; on return every search that starts sees it.

        Raises:
            Damaged: none would.
        """
        mine = _Pending(write)
        self._pending.append(mine)
        with self.locked(), uninterrupted():  # the index reads too, and what is committed is to be found by it
            if mine.outcome is None:
                self._commit([self._pending.popleft() for _ in range(len(self._pending))])
        if isinstance(mine.outcome, Exception):
            raise mine.outcome
        assert mine.outcome is not None, "see _commit"
        return mine.outcome

    def index(self, beside: Read | None = None) -> LiveIndex | None:
        """The index, opened if it is not, at once where its vectors were read `beside`; the lock is held around it."""
        if self.live is None:
            try:
                corpus = self._store.corpus(self._name)
                if corpus.dim is not None:
                    with for_others():  # a caller who is in a hurry would never see it opened
                        self.live = self._open_index(corpus, beside)
            except Damaged as error:
                self.damage = error.message
                raise
            self.damage = None
        return self.live

    def close(self, *, gone: bool = False, erase: bool = False) -> None:
        """Let the index go; `gone`: there is no such corpus any more; `erase`: nor are its index's files needed."""
        with self._lock:
            self._gone = self._gone or gone
            self.removals += 1
            live, self.live = self.live, None
            if live is not None:
                with naming(Path("indexes", self._name)):
                    live.close(erase=erase)

    def _commit(self, together: Sequence[_Pending]) -> None:
        """Each of them has its outcome on return: whoever takes a write from the others owes them that."""
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
        """The write is acknowledged whatever happens here: the store has it."""
        self.removals += len(change.removed) > 0
        if self.live is None:
            return
        if isinstance(write, Content) and write.fingerprint != self.live.fingerprint:
            self.close()  # it was empty; vectors of another encoder go to another index
            return
        try:
            if isinstance(write, Content):
                self.live.change(change.removed, change.added, change.vectors)
            else:
                self.live.remove(change.removed)
        except Exception:
            log.exception("the index of corpus %r could not be updated; it is opened anew", self._name)
            self.close()
