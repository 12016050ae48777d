"""C^(-1/2) of covariance matrices, many at once, with a gradient that is finite at repeated eigenvalues."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IN_CLOSED_FORM = 2
"""Rows of the matrices whose roots need no eigenvectors."""


def inverse_square_root(matrix: Tensor, eps: float) -> Tensor:
    """(A + eps)^(-1/2) of symmetric, positive semi-definite (..., C, C); finite, gradient included, if eps > 0."""
    if matrix.shape[-1] == IN_CLOSED_FORM:
        return _of_pairs(matrix, eps)
    root: Tensor = _ByEigenvalues.apply(matrix, eps)  # type: ignore[no-untyped-call]
    return root


def principal_axes(matrix: Tensor, eps: float) -> Tensor:
    """U (L + eps)^(-1/2) of (..., C, C), the largest eigenvalue first, without gradient.

    An eigenvector's sign is arbitrary: its largest entry is positive here, so that one step's axes are the next one's.
    """
    vectors, roots = _axes(matrix.detach(), eps)
    largest = vectors.gather(-2, vectors.abs().argmax(-2, keepdim=True))
    return (vectors * largest.sign() / roots[..., None, :]).flip(-1)


def _of_pairs(matrix: Tensor, eps: float) -> Tensor:
    """Of (..., 2, 2), from the determinant s^2 and the trace t of A + eps: (t + s - A) / (s sqrt(t + 2 s)).

    LAPACK takes six times as long for 1,152 of them, and on a GPU the host waits for it.
    """
    a, b, d = matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 1, 1]
    trace = a + d + 2 * eps
    s = ((a * d - b * b).clamp_min(0) + eps * (a + d) + eps * eps).sqrt()
    adjugate = torch.stack([d + eps + s, -b, -b, a + eps + s], dim=-1).reshape(matrix.shape)
    return adjugate / (s * (trace + 2 * s).sqrt())[..., None, None]


class _ByEigenvalues(torch.autograd.Function):
    """With the derivative of Daleckii and Krein.

    The gradient of `eigh` divides by the differences of eigenvalues: NaN where two are equal. The divided differences
    of x^(-1/2) are -1 / (s_i s_j (s_i + s_j)), s the square roots of the eigenvalues, and need no difference.
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
    """Eigenvectors in columns, and square roots of the eigenvalues, which rounding can make slightly negative."""
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    return vectors, (eigenvalues.clamp_min(0) + eps).sqrt()
