"""Projection of vectors onto a plane by principal component analysis."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

AXES = 2
DECIMALS = 5
"""Decimals of a coordinate. More would be invisible on a screen, and would vary with the order of summation."""


class Projection(NamedTuple):
    """Vectors projected onto the plane of their largest variance, through their mean."""

    points: NDArray[np.float64]
    """(N, 2)."""
    explained: NDArray[np.float64]
    """(2,): share of the variance along each axis."""


def project(vectors: NDArray[np.float32]) -> Projection:
    """Project (N, D) `vectors`, minus their mean, onto their first two right singular vectors (Pearson 1901).

    The singular vectors are computed in float64, as eigenvectors of the (D, D) scatter matrix, so the time hardly grows
    with N. The sign of an axis makes its largest loading positive, so equal vectors always get equal coordinates. If
    the vectors do not vary, all coordinates are 0.
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
