"""Tests of batched logistic regressions against scikit-learn's single ones."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from training.evaluation import logistic
from training.evaluation.vectors import EvaluationError

GRID = (0.25, 2.0, 32.0)


def labelled(classes: int) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
    """Return correlated features with a mean, noisy labels, and four selections of rows."""
    rng = np.random.default_rng(classes)
    features = (rng.normal(size=(300, 8)) @ rng.normal(size=(8, 8)) + 5).astype(np.float32)
    scores = features @ rng.normal(size=(8, classes)) + 4 * rng.normal(size=(300, classes))
    return features, 10 + (scores - scores.mean(axis=0)).argmax(axis=1), rng.random((4, 300)) < 0.8


@pytest.mark.parametrize("classes", [2, 4])
def test_each_fit_predicts_as_one_that_is_fitted_alone(classes: int) -> None:
    features, labels, rows = labelled(classes)
    exact = features.astype(np.float64)
    found = list(logistic.predictions(features, labels, rows, GRID))
    for c, predicted in zip(GRID, found, strict=True):
        for used, mine in zip(rows, predicted, strict=True):
            alone = LogisticRegression(C=c, solver="newton-cholesky", tol=1e-10).fit(exact[used], labels[used])
            np.testing.assert_array_equal(mine, alone.predict(exact))
    assert len(np.unique(found[0])) == classes and (found[0][0] != found[0][1]).any(), "the rows make a difference"
    assert (found[0] != found[-1]).any(), "C makes a difference"


def test_a_fit_that_does_not_converge_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logistic, "STEPS", 2)
    with pytest.raises(EvaluationError, match="no convergence within 2 steps"):
        list(logistic.predictions(*labelled(2), GRID))
