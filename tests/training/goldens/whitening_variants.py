"""ZCA and PCA of one batch, by N and by N - 1, and three steps of running statistics."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from tests.training.goldens.golden import Golden, gradients
from training.objectives.whitening import (
    Gradient,
    Statistics,
    covariance,
    group_whitening,
    inverse_square_root,
    principal_axes,
)

CORRECTIONS = {"N": 0, "Nminus1": 1}


def check(golden: Golden, dtype: torch.dtype) -> None:
    x, upstream = golden.leaf("x"), golden["upstream"]
    for gradient in get_args(Gradient):
        for name, correction in CORRECTIONS.items():
            white = zca(x, correction, gradient)
            (at_x,) = gradients((white * upstream).sum(), x)
            golden.close(white, f"zca_{name}_out")
            golden.close(white @ white.T, f"zca_{name}_gram")
            golden.close(at_x, f"zca_{name}_grad_{gradient}")
        golden.close(group_whitening(x, 1, eps=0.0, gradient=gradient), "zca_N_out")
    for name, correction in CORRECTIONS.items():
        white = pca(x, correction)
        golden.close(white @ white.T, f"pca_{name}_gram")
        golden.close(white.abs(), f"pca_{name}_abs_sorted_desc")
    check_moving_statistics(golden)
    check_rank_deficiency(golden)


def zca(x: Tensor, correction: int, gradient: Gradient) -> Tensor:
    centred = x - x.mean(0)
    spread = covariance(centred.detach() if gradient == "detached" else centred, correction=correction)
    return centred @ inverse_square_root(spread, 0.0)


def pca(x: Tensor, correction: int) -> Tensor:
    centred = x - x.mean(0)
    return centred @ principal_axes(covariance(centred, correction=correction), 0.0)


def check_moving_statistics(golden: Golden) -> None:
    x = golden["x"]
    for key in golden.keys("running_mean_"):
        steps, beta = key.removeprefix("running_mean_").split("steps_beta")
        moving = Statistics(torch.zeros_like(x[0]), torch.eye(x.shape[1], dtype=x.dtype))
        for _ in range(int(steps)):
            moving = moving.updated(x, float(beta))
        golden.close(moving.mean, key)
        golden.close(moving.covariance, key.replace("mean", "cov"))


def check_rank_deficiency(golden: Golden) -> None:
    """Check that the eigenvalues of a batch smaller than its width, some below 0, have an inverse root."""
    eigenvalues = golden["rank_deficient_eigs"].diag()
    assert inverse_square_root(eigenvalues, 1e-5).isfinite().all()
    assert principal_axes(eigenvalues, 1e-5).isfinite().all()
