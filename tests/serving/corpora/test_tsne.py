"""Tests of the layout of a map: general properties, and the proximity of neighbours."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.corpora.tsne.layout import EXACT, STEPS, neighbours, placed

Matrix = NDArray[np.float32]


def unit(vectors: NDArray[np.float64]) -> Matrix:
    found: Matrix = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return found


def clusters(count: int, *, of: int = 5, dim: int = 24, seed: int = 0) -> tuple[Matrix, NDArray[np.int64]]:
    """Return unit vectors around `of` centres, and the centre of each."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(of, size=count)
    return unit(rng.standard_normal((of, dim))[labels] + 0.5 * rng.standard_normal((count, dim))), labels


def nearest(points: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the index of each point's nearest other point."""
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    found: NDArray[np.int64] = distances.argmin(axis=1)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 60, 400])
def test_every_vector_has_one_finite_place_which_is_always_the_same(count: int) -> None:
    vectors, _ = clusters(count)
    told: list[tuple[int, int]] = []
    places = placed(vectors, lambda *far: told.append(far))
    assert places.shape == (count, 2) and np.isfinite(places).all()
    assert np.array_equal(placed(vectors, lambda *_: None), places)
    done = [done for done, _ in told]
    assert all(one <= other for one, other in pairwise(done)) and {total for _, total in told} <= {STEPS}
    assert not done or done[-1] == STEPS


@pytest.mark.slow
def test_clusters_stay_together() -> None:
    vectors, labels = clusters(400)
    places = placed(vectors, lambda *_: None)
    assert (labels[nearest(places)] == labels).mean() > 0.95
    assert np.abs(places.mean(axis=0)).max() < 1


@pytest.mark.slow
def test_equal_vectors_have_places_too() -> None:
    same = np.repeat(unit(np.ones((1, 8))), 50, axis=0)
    assert not placed(same, lambda *_: None).any()
    twice = np.concatenate([same, clusters(50, dim=8)[0]])
    assert np.isfinite(placed(twice, lambda *_: None)).all()


@pytest.mark.slow
@pytest.mark.parametrize("count", [500, EXACT + 500])
def test_neighbours_are_the_nearest_others(count: int) -> None:
    """Check nearly all neighbours, because an index finds them approximately."""
    vectors, _ = clusters(count, of=40)
    vectors[1] = vectors[0]
    indices, distances = neighbours(vectors, lambda _: None)
    assert not (indices == np.arange(count)[:, None]).any() and indices.min() >= 0
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    wanted = np.argsort(-cosines, axis=1)[:, : indices.shape[1]]
    found = np.mean([len(set(one) & set(other)) / len(one) for one, other in zip(indices, wanted, strict=True)])
    assert found > (0.999 if count <= EXACT else 0.9)
    assert distances[0, 0] == pytest.approx(0, abs=1e-3)
    assert (np.diff(distances, axis=1) >= -1e-4).all()
