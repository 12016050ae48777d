"""Vectors as points of a plane: principal component analysis."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

AXES = 2
DECIMALS = 5
"""Of a coordinate: finer than any screen, coarser than what another order of summation changes."""


class Projection(NamedTuple):
    """A plane through the mean of some vectors, along which they vary most."""

    points: NDArray[np.float64]
    """(N, 2)."""
    explained: NDArray[np.float64]
    """(2,): the share of the variance that each axis shows."""


def project(vectors: NDArray[np.float32]) -> Projection:
    """(N, D) `vectors`, each less their mean, on the first two right singular vectors (Pearson 1901).

    They are found in the (D, D) scatter, which has the same ones, in float64: the time hardly grows with N. An axis
    points to where its largest loading does, so that the same vectors lie in the same places every time. What does not
    vary lies at 0.
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
