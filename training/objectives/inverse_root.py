"""Inverse square roots of batches of covariance matrices, with finite gradients at repeated eigenvalues."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IN_CLOSED_FORM = 2
"""Matrices of this size have a closed form of the inverse square root."""


def inverse_square_root(matrix: Tensor, eps: float) -> Tensor:
    """Compute (A + eps)^(-1/2) of symmetric, positive semi-definite matrices (..., C, C).

    The result and its gradient are finite if eps > 0.
    """
    if matrix.shape[-1] == IN_CLOSED_FORM:
        return _of_pairs(matrix, eps)
    root: Tensor = _ByEigenvalues.apply(matrix, eps)  # type: ignore[no-untyped-call]
    return root


def principal_axes(matrix: Tensor, eps: float) -> Tensor:
    """Return U (L + eps)^(-1/2) of (..., C, C), largest eigenvalue first, without gradient.

    The sign of an eigenvector is arbitrary. Here its largest entry is positive, so that axes agree from step to step.
    """
    vectors, roots = _axes(matrix.detach(), eps)
    largest = vectors.gather(-2, vectors.abs().argmax(-2, keepdim=True))
    return (vectors * largest.sign() / roots[..., None, :]).flip(-1)


def _of_pairs(matrix: Tensor, eps: float) -> Tensor:
    """Compute (t + s - A) / (s sqrt(t + 2 s)) of matrices (..., 2, 2).

    s^2 is the determinant and t the trace of A + eps. An eigendecomposition by LAPACK takes six times as long for 1,152
    matrices. On a GPU, the host would have to wait for it.
    """
    a, b, d = matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 1, 1]
    trace = a + d + 2 * eps
    s = ((a * d - b * b).clamp_min(0) + eps * (a + d) + eps * eps).sqrt()
    adjugate = torch.stack([d + eps + s, -b, -b, a + eps + s], dim=-1).reshape(matrix.shape)
    return adjugate / (s * (trace + 2 * s).sqrt())[..., None, None]


class _ByEigenvalues(torch.autograd.Function):
    """The inverse square root with the derivative of Daleckii and Krein.

    The gradient of `eigh` divides by differences of eigenvalues, so it is NaN if two eigenvalues are equal. This
    derivative divides by sums instead: its coefficients are -1 / (s_i s_j (s_i + s_j)), where s are the square roots of
    the eigenvalues of A + eps.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, eps: float) -> Tensor:
        vectors, roots = _axes(matrix, eps)
        ctx.save_for_backward(vectors, roots)
        return (vectors / roots[..., None, :]) @ vectors.mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        vectors, roots = ctx.saved_tensors
        rows, columns = roots[..., :, None], roots[..., None, :]
        along_axes = vectors.mT @ gradient @ vectors / (rows * columns * (rows + columns))
        return -(vectors @ along_axes @ vectors.mT), None


def _axes(matrix: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return eigenvectors in columns, and the square roots of the eigenvalues + eps.

    Negative eigenvalues come from rounding and are set to 0.
    """
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    return vectors, (eigenvalues.clamp_min(0) + eps).sqrt()
