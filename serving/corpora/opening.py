"""Opening of the corpora's indexes. One builder serves all of them."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from serving.indexes import KINDS
from serving.indexes.building import Builder
from serving.indexes.live import LiveIndex
from serving.indexes.opened import Generations
from serving.indexes.plan import FEWEST, Plan
from serving.indexes.reading import Read, read
from serving.indexes.saved import Identity
from serving.ports import Blocks, Corpus, Keys, Store, StoreError
from serving.stores.failures import naming


@dataclass(frozen=True)
class _Source:
    """A corpus of a store, with the interface of `indexes.live.Source`."""

    store: Store
    name: str

    def vectors(self, after: int) -> Blocks:
        return self.store.vectors(self.name, after=after)

    def keys(self) -> Keys:
        return self.store.keys(self.name)

    def tombstones(self, upto: int) -> Keys:
        return self.store.tombstones(self.name, upto)

    def bury(self, keys: Keys) -> None:
        self.store.bury(self.name, keys)

    def last_key(self) -> int:
        return self.store.last_key(self.name)

    def count(self) -> int:
        return self.store.size(self.name).passages


class Indexes:
    """The opener of indexes, each with its own folder under `folder`.

    Approximate indexes begin at `least` vectors, but not below `FEWEST`.

    Raises:
        StoreError: `gpu` is set, but FAISS can't search on a GPU; the message says why.
    """

    def __init__(
        self,
        folder: Path,
        *,
        approximate: bool = True,
        gpu: bool = False,
        threads: int = 1,
        least: int = Plan.least,
    ) -> None:
        self._folder, self._beside = folder, folder / ".beside"
        shutil.rmtree(self._beside, ignore_errors=True)  # left by a killed server
        self._plan = Plan(max(least, FEWEST)) if approximate else Plan(kinds=())
        self._kinds = KINDS
        self._threads = threads
        self._builder = Builder()
        if gpu and (reason := self.use_gpu()):
            raise StoreError(f"--index gpu: {reason}")

    def use_gpu(self) -> str | None:
        """Use the first CUDA device for the indexes of corpora that are opened from now on.

        Returns:
            None, or the reason why FAISS can't search on the device. In that case nothing changes.
        """
        from serving.indexes.gpu import GPU_KINDS, trouble

        if reason := trouble():
            return reason
        self._plan = replace(self._plan, kinds=(*GPU_KINDS, *self._plan.kinds))
        self._kinds = {**KINDS, **GPU_KINDS}
        return None

    def read(self, vectors: Blocks) -> Read | None:
        """Read `vectors` into a partial index before they are served. Return None if there are no vectors.

        Raises:
            InsufficientStorage, Unhealthy: the disk fails.
        """
        first = next(vectors, None)
        if first is None:
            return None
        folder = self._beside / secrets.token_hex(8)
        with naming(folder):
            return read(folder, first[1].shape[1], chain([first], vectors))

    @contextmanager
    def reading(self, vectors: Blocks) -> Iterator[Read | None]:
        """Read `vectors` as `read` does. After the block, discard the result unless an index uses it."""
        beside = self.read(vectors)
        try:
            yield beside
        finally:
            if beside:
                beside.discard()

    def open(self, store: Store, corpus: Corpus, target: Callable[[], float], beside: Read | None = None) -> LiveIndex:
        """Open the index of `corpus`, whose dimension must be known.

        `target` returns the wanted recall. `beside` is a result of `read`, if the vectors were read before.

        Raises:
            InsufficientStorage, Unhealthy: the disk fails.
        """
        assert corpus.fingerprint is not None and corpus.dim is not None
        identity = Identity(corpus.generation, corpus.fingerprint, corpus.dim)
        source, folder = _Source(store, corpus.name), self._folder / corpus.name
        with naming(folder):
            return LiveIndex(
                source,
                identity,
                self._builder,
                folder=folder,
                target=target,
                threads=self._threads,
                plan=self._plan,
                kinds=self._kinds,
                beside=beside,
            )

    def erase(self, name: str) -> None:
        """Remove the files of an index that is not open, or never was.

        Raises:
            Unhealthy: the disk fails.
        """
        folder = self._folder / name
        with naming(folder):
            Generations(folder).erase()

    def close(self) -> None:
        self._builder.close()
