"""Random sequences of writes, builds, restarts and searches against a dict: nothing is lost or comes back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from serving.corpora.indexes import live
from serving.corpora.indexes.building import Plan, recall
from serving.corpora.indexes.exact import nearest
from serving.corpora.indexes.live import LiveIndex
from serving.corpora.indexes.saved import Identity
from serving.corpora.ports import Ranking
from tests.serving.corpora.indexes.following import NO_KEYS, NO_VECTORS, Turns
from tests.serving.corpora.indexes.sources import DictSource
from tests.serving.corpora.indexes.vectors import clustered

DIM, TARGET = 8, 0.9
EXAMPLES = int(os.environ.get("ISOSPHERE_INDEX_EXAMPLES", "25"))
"""Number of corpora, each with 15 steps. The variable sets a higher number."""
POOL = clustered(4000, dim=DIM, seed=1, clusters=8)
KIND = {"hnsw": 400, "ivf-flat": 1200, "flat": 400}
"""Kinds of indexes, with the number of vectors from which on each is built."""


class Machine(RuleBasedStateMachine):
    """A corpus and its users."""

    @initialize(kind=st.sampled_from(sorted(KIND)), count=st.integers(0, 1500))
    def open(self, kind: str, count: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.plan = Plan(least=KIND[kind], kinds=(kind,))
        self.source = DictSource(DIM)
        self.next = 0
        self.gone: set[int] = set()
        self.builder = Turns()
        self.index = self._index()
        self._put(count)

    @rule(count=st.integers(1, 400))
    def add(self, count: int) -> None:
        self._put(count)

    @rule(data=st.data(), most=st.sampled_from([3, 300]))
    def remove(self, data: st.DataObject, most: int) -> None:
        seed = data.draw(st.integers(0, 99))
        known = np.arange(1, self.source.last + 5)
        self._take(np.random.default_rng(seed).permutation(known)[:most])

    @rule(data=st.data(), count=st.integers(1, 50))
    def replace(self, data: st.DataObject, count: int) -> None:
        held = np.array(sorted(self.source.held), np.int64)
        old = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(held)[:count]
        self.gone |= set(old.tolist())
        self.source.take(old)
        new = self._fresh(len(old))
        self.index.change(old, self.source.put(new), new)

    @rule()
    def build(self) -> None:
        self.builder.build()

    @rule()
    def grow(self) -> None:
        self.builder.grow()

    @rule(count=st.integers(1, 400))
    def grow_during_a_build(self, count: int) -> None:
        def meanwhile(_: str) -> None:
            self._put(count)
            self.builder.grow()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(live, "reach", meanwhile)
            self.builder.build()

    @rule()
    def build_now(self) -> None:
        self.index.build_now()

    @rule()
    def restart(self) -> None:
        self.builder.waiting.clear()
        self.builder.brief.clear()
        self.index.close()
        self.index = self._index()

    @rule()
    def erase(self) -> None:
        self.index.close(erase=True)
        self.index = self._index()

    @rule(seed=st.integers(0, 99), k=st.sampled_from([1, 10, 70]), share=st.sampled_from([None, 0.0, 0.02, 0.5, 0.99]))
    def search(self, seed: int, k: int, share: float | None) -> None:
        queries = clustered(20, dim=DIM, seed=1000 + seed, clusters=8)
        held = np.array(sorted(self.source.held), np.int64)
        allowed = None
        if share is not None:
            known = np.arange(1, self.source.last + 1)
            allowed = known[np.random.default_rng(seed).random(len(known)) < share]
            held = held[np.isin(held, allowed)]
        vectors = np.array([self.source.held[key] for key in held.tolist()], np.float32).reshape(-1, DIM)
        truth = nearest(held, vectors, queries, k)
        found = self.index.search(queries, k, allowed, exact=True)
        for one, true in zip(found, truth, strict=True):
            assert one.keys.tolist() == true.keys.tolist()
            assert one.scores.tolist() == true.scores.tolist()
        found = self.index.search(queries, k, allowed)
        for one, true in zip(found, truth, strict=True):
            assert len(one.keys) == len(true.keys) == len(set(one.keys.tolist()))
            assert set(one.keys.tolist()) <= set(held.tolist())
            assert not self.gone & set(one.keys.tolist())
        self._recall(found, truth)

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "index"):
            assert len(self.index) == len(self.source.held)

    def teardown(self) -> None:
        if hasattr(self, "index"):
            self.index.close()
            self.folder.cleanup()

    def _recall(self, found: list[Ranking], truth: list[Ranking]) -> None:
        """Check the recall, with a tolerance for chance, because there are only twenty queries."""
        if len(truth[0].keys):
            assert recall(found, truth).mean() >= TARGET - 0.15

    def _index(self) -> LiveIndex:
        return LiveIndex(
            self.source,
            "c",
            Identity("1", "f", DIM),
            self.builder,
            folder=Path(self.folder.name),
            target=lambda: TARGET,
            plan=self.plan,
        )

    def _fresh(self, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        self.next += count
        return POOL[np.arange(self.next - count, self.next) % len(POOL)]

    def _put(self, count: int) -> None:
        new = self._fresh(count)
        self.index.change(NO_KEYS, self.source.put(new), new)

    def _take(self, gone: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        self.gone |= set(gone.tolist()) & self.source.held.keys()
        self.source.take(gone)
        self.index.change(gone, NO_KEYS, NO_VECTORS)


@pytest.fixture(autouse=True, scope="module")
def filters_are_not_searched_exactly() -> Iterator[None]:
    """Apply this to the whole module, because Hypothesis runs many corpora in one test."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("state", "building"):
            patch.setattr(f"serving.corpora.indexes.{module}.EXACT_ROWS", 50)
        yield


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=EXAMPLES, stateful_step_count=15, deadline=None)
