"""Batched logistic regression: many fits with the same feature matrix, each on its own rows.

Each step is one matrix product for all fits. The features are rotated to their principal axes, which changes neither
the penalty nor a prediction. On these axes the curvature of the loss is nearly diagonal, so a few steps are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from training.evaluation.vectors import EvaluationError

Floats = NDArray[np.float32]
Classes = NDArray[np.int64]

STEPS = 1000
TOLERANCE = 1e-10
"""All fits stop when the predicted decrease of every fit's mean loss is below this value."""
VARIANCE = 0.15
"""Assumed variance p (1 - p) of a predicted class. It affects the number of steps but not the solution."""
TINY = np.float32(1e-30)


def predictions(features: Floats, labels: Classes, rows: NDArray[np.bool_], grid: Sequence[float]) -> Iterator[Classes]:
    """Yield, for each C of an ascending `grid`, the classes (K, N) that K classifiers predict for all N rows.

    `features` are (N, F) and `labels` are (N,). `rows` (K, N) selects the training rows of each classifier. The loss is
    scikit-learn's: the summed cross-entropy of the training rows, plus 1/C times the L2 penalty of the weights without
    the intercept. With two classes, one logit is enough. Each fit starts from the solution for the previous C.

    Raises:
        EvaluationError: a fit doesn't converge.
    """
    classes = np.unique(labels[rows.any(axis=0)])
    targets = labels[:, None, None] == (classes if len(classes) > 2 else classes[1:])
    axes, squares = _principal_axes(features)
    used = rows.T[:, :, None].astype(np.float32)
    penalised = np.append(np.ones(features.shape[1]), 0)[:, None, None]
    weights = np.zeros((len(squares), len(rows), targets.shape[2]), dtype=np.float32)
    for c in grid:
        penalty = (penalised / c).astype(np.float32)
        curvature = penalty + VARIANCE * squares[:, None, None] * used.mean(axis=0)
        weights = _fit(axes, targets=targets, used=used, penalty=penalty, curvature=curvature, weights=weights)
        logits = _product(axes, weights)
        yield classes[logits.argmax(axis=2) if len(classes) > 2 else (logits[:, :, 0] > 0).astype(int)].T


def _principal_axes(features: Floats) -> tuple[Floats, Floats]:
    """Centre the features, rotate them to their principal axes, and append a column of ones.

    Return this matrix, and the sum of squares of each of its columns.
    """
    centred = features - features.mean(axis=0)
    squares, rotation = np.linalg.eigh((centred.T @ centred).astype(np.float64))
    axes = np.hstack([centred @ rotation.astype(np.float32), np.ones((len(features), 1), dtype=np.float32)])
    return axes, np.append(squares.clip(min=0), len(features)).astype(np.float32)


def _fit(
    axes: Floats, *, targets: NDArray[np.bool_], used: Floats, penalty: Floats, curvature: Floats, weights: Floats
) -> Floats:
    """Return the weights (F, K, J) that minimise the loss of K fits with J logits. `predictions` describes the loss.

    The search starts from `weights`. It follows conjugate gradients (Polak and Ribière), preconditioned by `curvature`,
    an estimate of the loss's curvature. Newton's method gives the length of each step along its direction.

    Args:
        axes: (N, F) features. The last column is ones.
        targets: (N, 1, J) whether a row belongs to the class of a logit.
        used: (N, K, 1) 1 for the training rows of each fit, else 0.
        penalty: (F, 1, 1) factor of the L2 penalty for each column of `axes`.
        curvature: (F, K, 1).
        weights: (F, K, J).

    Raises:
        EvaluationError: a fit doesn't converge.
    """
    enough = TOLERANCE * used.sum(axis=(0, 2))
    logits = _product(axes, weights)
    gradient = direction = np.zeros_like(weights)
    gain = np.ones(len(enough), dtype=np.float32)
    for _ in range(STEPS):
        p = expit(logits) if logits.shape[2] == 1 else softmax(logits, axis=2)
        last_gradient, last_gain = gradient, gain
        gradient = _product(axes.T, used * (p - targets)) + penalty * weights
        scaled = gradient / curvature
        gain = _dot(gradient, scaled)
        if (gain <= enough).all():
            return weights
        kept = np.maximum(gain - _dot(last_gradient, scaled), 0) / np.maximum(last_gain, TINY)
        kept[kept * _dot(gradient, direction) >= gain] = 0  # Restart if the direction would not be a descent direction.
        direction = kept[:, None] * direction - scaled
        change = _product(axes, direction)
        spread = (p * change**2).sum(axis=2) - (p * change).sum(axis=2) ** 2
        curved = np.einsum("nk,nk->k", used[:, :, 0], spread) + _dot(direction, penalty * direction)
        length = (-_dot(gradient, direction) / np.maximum(curved, TINY))[:, None]
        weights, logits = weights + length * direction, logits + length * change
    raise EvaluationError(f"logistic regression: no convergence within {STEPS} steps")


def _product(matrix: Floats, stack: Floats) -> Floats:
    """Multiply `matrix` (M, N) by each of K matrices (N, J), which are stacked as (N, K, J)."""
    product: Floats = (matrix @ stack.reshape(len(stack), -1)).reshape(len(matrix), *stack.shape[1:])
    return product


def _dot(one: Floats, other: Floats) -> Floats:
    """Compute the dot products (K,) of K pairs of matrices (F, J). Each argument is a stack (F, K, J)."""
    dots: Floats = np.einsum("fkj,fkj->k", one, other)
    return dots
