"""A plane through vectors: what is lost, and that it stays where it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from serving.corpora.maps import project

MATRICES = arrays(
    np.float32,
    st.tuples(st.integers(0, 12), st.integers(1, 6)),
    elements=st.floats(-1, 1, width=32).map(lambda number: round(number, 2)),
)


@given(MATRICES)
def test_it_keeps_what_varies_most(vectors: np.ndarray) -> None:
    points, explained = project(vectors)
    assert points.shape == (len(vectors), 2) and np.isfinite(points).all()
    if not len(vectors):
        return
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    singular = np.linalg.svd(centred, compute_uv=False)[:2]
    spread = np.zeros(2)
    spread[: len(singular)] = singular
    assert np.linalg.norm(points, axis=0) == pytest.approx(spread, abs=1e-3), (
        "as the singular values of the matrix itself"
    )
    assert 0 <= explained.sum() <= 1 + 1e-9
    total = (centred**2).sum()
    if total > 1e-3:
        assert explained == pytest.approx(spread**2 / total, abs=1e-6)


def test_the_order_of_vectors_changes_nothing() -> None:
    vectors = np.random.default_rng(1).standard_normal((200, 16)).astype(np.float32)
    order = np.random.default_rng(2).permutation(len(vectors))
    assert project(vectors[order]).points == pytest.approx(project(vectors).points[order], abs=2e-5)


def test_points_of_a_plane_keep_their_distances() -> None:
    flat = np.random.default_rng(3).standard_normal((50, 2))
    plane, _ = np.linalg.qr(np.random.default_rng(4).standard_normal((24, 2)))
    points, explained = project((flat @ plane.T + 5).astype(np.float32))
    assert explained.sum() == pytest.approx(1)
    ours = np.linalg.norm(points[:, None] - points[None], axis=-1)
    assert ours == pytest.approx(np.linalg.norm(flat[:, None] - flat[None], axis=-1), abs=1e-3)
