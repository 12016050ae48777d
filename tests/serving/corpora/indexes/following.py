"""A live index that follows a source, is built on demand, and is compared with the source."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.runtimes.base import Floats
from serving.corpora.indexes.building import Builder, Plan, Work, recall
from serving.corpora.indexes.exact import nearest
from serving.corpora.indexes.live import LiveIndex
from serving.corpora.indexes.saved import Identity
from serving.corpora.ports import Ranking
from tests.serving.corpora.indexes.sources import DictSource
from tests.serving.corpora.indexes.vectors import clustered, keys

DIM = 16
NO_KEYS, NO_VECTORS = keys([]), np.empty((0, DIM), np.float32)
IDENTITY = Identity("1", "f", DIM)
PLAN = Plan(least=500, kinds=("hnsw",))
EVERY = ("flat", "hnsw", "ivf-flat", "ivf-sq8", "ivf-pq")


class Turns(Builder):
    """Builder that builds, or does brief work, only when a test asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Work] = []
        self.brief: list[Work] = []

    def submit(self, work: Work, *, brief: bool = False) -> None:
        (self.brief if brief else self.waiting).append(work)

    def grow(self) -> None:
        brief, self.brief = self.brief, []
        for work in brief:
            work(lambda: None)

    def build(self) -> None:
        waiting, self.waiting = self.waiting, []
        for work in waiting:
            work(lambda: None)


def opened(source: DictSource, builder: Builder, folder: Path, plan: Plan = PLAN) -> LiveIndex:
    return LiveIndex(source, "c", IDENTITY, builder, folder=folder, target=lambda: 0.9, plan=plan)


def put(index: LiveIndex, source: DictSource, count: int, seed: int = 0) -> None:
    vectors = clustered(count, seed=seed)
    index.change(NO_KEYS, source.put(vectors), vectors)


def take(index: LiveIndex, source: DictSource, gone: list[int]) -> None:
    source.take(keys(gone))
    index.change(keys(gone), NO_KEYS, NO_VECTORS)


def truth(source: DictSource, queries: Floats, k: int) -> list[Ranking]:
    places = keys(set(source.held))
    return nearest(places, np.stack([source.held[key] for key in places.tolist()]), queries, k)


def same(found: list[Ranking], other: list[Ranking]) -> bool:
    return all(
        np.array_equal(a.keys, b.keys) and np.array_equal(a.scores, b.scores) for a, b in zip(found, other, strict=True)
    )


def check(index: LiveIndex, source: DictSource) -> None:
    queries = clustered(60, seed=77)
    assert len(index) == len(source.held)
    assert same(index.search(queries, 10, exact=True), truth(source, queries, 10))
    found = index.search(queries, 10)
    assert all(set(one.keys.tolist()) <= source.held.keys() for one in found)
    assert recall(found, truth(source, queries, 10)).mean() >= 0.9
