"""Maps of a corpus: a random sample of its passages, with positions on a plane.

The positions are a projection of the vectors, or come from the map that a job has computed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Floats
from serving.corpora.filters import values_at
from serving.corpora.ports import Store
from serving.corpora.values import MAX_POINTS, Blocks, Keys, MapOrigin, Passage

AXES = 2
DECIMALS = 5
"""Number of decimals of a coordinate. Further decimals are invisible on a screen, and depend on the order of
summation."""


class Projection(NamedTuple):
    """Vectors projected onto a plane through their mean. This plane preserves the most variance."""

    points: NDArray[np.float64]
    """(N, 2) coordinates."""
    explained: NDArray[np.float64]
    """(2,) share of the variance that each axis explains."""


def project(vectors: NDArray[np.float32]) -> Projection:
    """Project (N, D) `vectors`, minus their mean, onto their first two right singular vectors (Pearson 1901).

    The singular vectors are computed in float64, as eigenvectors of the (D, D) scatter matrix. The time of this
    decomposition does not depend on N. On each axis, the loading with the largest absolute value is made positive. The
    same vectors therefore always get the same coordinates. If the vectors do not vary, all coordinates are 0.
    """
    points, explained = np.zeros((len(vectors), AXES)), np.zeros(AXES)
    if not vectors.size:
        return Projection(points, explained)
    centred = vectors.astype(np.float64)
    centred -= centred.mean(axis=0)
    _, variances, axes = np.linalg.svd(centred.T @ centred, hermitian=True)
    if (total := variances.sum()) <= np.finfo(np.float32).eps ** 2 * vectors.size:
        return Projection(points, explained)
    axes, variances = axes[:AXES], variances[:AXES]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1, keepdims=True), axis=1)
    points[:, : len(axes)] = np.round(centred @ (axes * np.sign(largest)).T, DECIMALS)
    explained[: len(axes)] = variances / total
    return Projection(points, explained)


SEED = 0
"""Seed of the random samples. With a fixed seed, the same corpus always gets the same sample."""
READ_TOGETHER = 64
"""Maximum number of passages that are read in one step. The whole document of each passage is then in memory."""
MAX_NUMBERS = MAX_POINTS * 1024
"""Maximum total number of components of the vectors from which a map is computed. If vectors have more than 1024
dimensions, the map has fewer than `MAX_POINTS` points."""
EXCERPT = 200
"""Maximum characters of a passage in a sample."""


class Sampled(NamedTuple):
    """A passage of a sample, shortened to `EXCERPT` characters."""

    document: str
    """Id of the passage's document."""
    excerpt: str
    value: object
    """Value of the requested metadata field. None if the document does not have the field."""


class Sample(NamedTuple):
    """Sampled passages with their (n, D) vectors. `of` is the number of all passages in the corpus."""

    passages: list[Sampled]
    vectors: Floats
    of: int


def sampled(store: Store, name: str, size: int, field: str | None = None) -> Sample:
    """Return a random sample of up to `size` passages, each with its document's value of the metadata field `field`.

    If the corpus is re-embedded meanwhile, the sampling starts again, so that all vectors come from the same encoder.
    """
    while True:
        before, keys = _version(store, name), _keys(store, name)
        rows = {
            int(key): vector
            for some, vectors in store.vectors(name, _drawn(keys, size).tolist())
            for key, vector in zip(some, vectors, strict=True)
        }
        told = dict(_sampled_passages(store, name, list(rows), field))
        if _version(store, name) == before:
            kept = [rows[key] for key in told]
            return Sample(list(told.values()), np.stack(kept) if kept else np.empty((0, 0), np.float32), len(keys))


class Unplaced(NamedTuple):
    """Vectors of a corpus from which a new map is computed. They have no positions on a map yet."""

    origin: MapOrigin
    generation: str
    dim: int
    blocks: Blocks
    """Keys and vectors, which are read from the store block by block."""


def unplaced(store: Store, name: str) -> Unplaced:
    """Return the vectors of a corpus for a new map. For a large corpus, return a uniform random sample of its vectors.

    The vectors are read only when the caller iterates over `Unplaced.blocks`. If the generation of the corpus changes
    during this iteration, the vectors may come from several encoders. `Store.keep_map` refuses a map of such vectors.
    """
    corpus, created, keys = store.corpus(name), time.time(), _keys(store, name)
    dim = corpus.dim or 1
    drawn = _drawn(keys, min(MAX_POINTS, MAX_NUMBERS // dim))
    origin = MapOrigin(corpus.fingerprint, len(keys), int(keys.max(initial=0)), created)
    return Unplaced(origin, corpus.generation, dim, store.vectors(name, drawn.tolist()))


class Placed(NamedTuple):
    """Sampled passages of the stored map, oldest first, with their coordinates.

    The other fields describe the whole map, and how the corpus has changed since the map was computed.
    """

    passages: list[Sampled]
    places: NDArray[np.float64]
    """(n, 2) coordinates of the passages."""
    of: int
    """Number of passages in the corpus."""
    origin: MapOrigin
    points: int
    """Number of points on the whole map whose passages still exist."""
    added: int
    """Number of passages that were added after the map was computed. They have no position."""
    removed: int
    current: bool
    """True if the passages and vectors of the corpus have not changed since the map was computed."""


def placed(store: Store, name: str, size: int, field: str | None = None) -> Placed | None:
    """Return a random sample of up to `size` passages of the stored map. If there is no map, return None.

    If the corpus is restored or re-embedded meanwhile, the reading starts again.
    """
    while True:
        before, found, keys = _version(store, name), store.kept_map(name), _keys(store, name)
        if found is None:
            return None
        origin, there = found.origin, np.isin(found.keys, keys, assume_unique=True)
        place = dict(zip(found.keys[there].tolist(), found.places[there], strict=True))
        told = dict(_sampled_passages(store, name, _drawn(found.keys[there], size).tolist(), field))
        added = int((keys > origin.last_key).sum())
        removed = origin.passages - (len(keys) - added)
        if _version(store, name) == before:
            current = added == removed == 0 and before[1] == origin.fingerprint
            places = np.array([place[key] for key in told]).reshape(-1, AXES)
            return Placed(list(told.values()), places, len(keys), origin, len(place), added, removed, current)


def _keys(store: Store, name: str) -> Keys:
    """Return the sorted keys of all passages whose documents have not expired."""
    return np.setdiff1d(store.keys(name), store.expired(name), assume_unique=True)


def _drawn(keys: Keys, size: int) -> Keys:
    return np.sort(np.random.default_rng(SEED).choice(keys, min(size, len(keys)), replace=False))


def _version(store: Store, name: str) -> tuple[str, str | None]:
    corpus = store.corpus(name)
    return corpus.generation, corpus.fingerprint


def _sampled_passages(store: Store, name: str, keys: Sequence[int], field: str | None) -> Iterator[tuple[int, Sampled]]:
    """Yield the sorted `keys`, each with its passage. Keys whose passage no longer exists are skipped."""
    for start in range(0, len(keys), READ_TOGETHER):
        for key, passage in sorted(store.passages(name, keys[start : start + READ_TOGETHER]).items()):
            document = passage.document
            value = next(values_at(document.metadata, field), None) if field else None
            yield key, Sampled(document.id, excerpt(passage), value)


def excerpt(passage: Passage) -> str:
    text, (start, end) = passage.document.text, passage.span or (0, len(passage.document.text))
    return text[start:end] if end - start <= EXCERPT else f"{text[start : start + EXCERPT - 1]}…"
