"""Whitening over the sentences of a batch: in groups of channels, shuffled or not, or over all channels.

Whitened vectors have mean 0 and the identity as covariance. Centred vectors x have the covariance C = U L U^T. ZCA,
x C^(-1/2), is the whitening that changes vectors least. PCA, x U L^(-1/2), rotates vectors onto the principal axes.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from models.encoder.encoder import full_precision

Gradient = Literal["detached", "full"]
"""Treatment of the covariance in the gradient.

"detached" treats the covariance as a constant, and "full" differentiates it. The mean is always differentiated.
"""


def covariance(centred: Tensor, *, correction: int = 0) -> Tensor:
    """Compute the covariance (..., C, C) of the N rows of (..., N, C). The divisor is N - `correction`."""
    return centred.mT @ centred / max(centred.shape[-2] - correction, 1)


def group_whitening(x: Tensor, groups: int, *, eps: float, gradient: Gradient = "detached") -> Tensor:
    """Whiten the channels of `x` (..., N, D) by ZCA, in `groups` groups of D / `groups` neighbouring channels.

    Each group is whitened by itself, with its covariance over the N rows. Computation is in float32 or wider. Source:
    WhitenedCSE (Zhuo et al., ACL 2023), equations 2 to 6, without the shuffling.
    """
    with torch.autocast(x.device.type, enabled=False):
        wide = full_precision(x)
        centred = wide - wide.mean(-2, keepdim=True)
        grouped = centred.reshape(*x.shape[:-1], groups, -1).transpose(-3, -2)  # (..., k, N, D / k)
        spread = covariance(grouped.detach() if gradient == "detached" else grouped)
        whitened = grouped @ inverse_square_root(spread, eps)
        return whitened.transpose(-3, -2).reshape(x.shape)


def shuffled_group_whitening(
    x: Tensor, permutations: Tensor, groups: int, *, eps: float, gradient: Gradient = "detached"
) -> Tensor:
    """Permute the channels of `x` (..., N, D) by `permutations` (..., D), whiten in groups, and permute back."""
    shuffled = x.gather(-1, permutations[..., None, :].expand_as(x))
    whitened = group_whitening(shuffled, groups, eps=eps, gradient=gradient)
    return whitened.gather(-1, permutations.argsort(-1)[..., None, :].expand_as(x))


class Statistics(NamedTuple):
    """Mean (D,) and covariance (D, D) of a set of vectors."""

    mean: Tensor
    covariance: Tensor

    def updated(self, rows: Tensor, momentum: float) -> Statistics:
        """Return m · self + (1 - m) · S, where m is `momentum` and S are the statistics of `rows` (N, D).

        Source: WhitenedCSE, equation 13.
        """
        mean = rows.mean(0)
        spread = covariance(rows - mean, correction=1)
        return Statistics(self.mean.lerp(mean, 1 - momentum), self.covariance.lerp(spread, 1 - momentum))


class GroupWhitening(nn.Module):
    """Whitening of each view over the batch, in groups of channels.

    With `shuffled`, the groups of each view are drawn at random.

    Raises:
        ValueError: the width is not divisible by the number of groups.
    """

    def __init__(self, dim: int, groups: int, *, shuffled: bool, eps: float, gradient: Gradient) -> None:
        super().__init__()
        if dim % groups:
            valid = ", ".join(str(k) for k in range(1, dim + 1) if dim % k == 0)
            raise ValueError(f"groups: {groups} does not divide the width {dim}; these do: {valid}")
        self.groups = groups
        self.host = dim // groups != CLOSED_FORM_SIZE
        """True if whitening needs eigenvectors, which the host computes or waits for."""
        self.shuffled = shuffled
        self.eps = eps
        self.gradient = gradient

    def forward(self, views: Tensor, rng: torch.Generator) -> Tensor:
        """Whiten the views (V, N, D). With `shuffled`, permutations of the channels are drawn from `rng`."""
        if not self.shuffled:
            return group_whitening(views, self.groups, eps=self.eps, gradient=self.gradient)
        permutations = torch.rand(views.shape[::2], generator=rng, device=views.device).argsort(dim=-1)
        return shuffled_group_whitening(views, permutations, self.groups, eps=self.eps, gradient=self.gradient)


class MomentumWhitening(nn.Module):
    """Whitening of all channels together, by running statistics over the rows of all views and all batches so far.

    The statistics start with mean 0 and identity covariance. They do not start with those of the first batch, because
    the covariance of a batch with fewer rows than channels is singular. The statistics are float64, because at the
    start the eigenvalues are too close for float32 to separate the axes.
    """

    host = True
    mean: Tensor
    covariance: Tensor

    def __init__(
        self, dim: int, kind: Literal["pca", "zca"], *, momentum: float, eps: float, gradient: Gradient
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("covariance", torch.eye(dim, dtype=torch.float64))
        self.kind = kind
        self.momentum = momentum
        self.eps = eps
        self.gradient = gradient

    def forward(self, views: Tensor, rng: torch.Generator) -> Tensor:  # noqa: ARG002 - nothing is drawn
        """Update the running statistics with all views (V, N, D), and return the whitened views."""
        with torch.autocast(views.device.type, enabled=False):
            rows = views.double()
            mean, spread = Statistics(self.mean, self.covariance).updated(rows.flatten(0, 1), self.momentum)
            self.mean, self.covariance = mean.detach(), spread.detach()
            if self.kind == "pca":
                matrix = principal_axes(spread, self.eps)
            else:
                matrix = inverse_square_root(self.covariance if self.gradient == "detached" else spread, self.eps)
            return ((rows - mean) @ matrix).to(full_precision(views).dtype)


# Inverse square roots of batches of covariance matrices, with finite gradients at repeated eigenvalues.

CLOSED_FORM_SIZE = 2
"""Size of matrices whose inverse square root is computed in closed form."""


def inverse_square_root(matrix: Tensor, eps: float) -> Tensor:
    """Compute (A + eps I)^(-1/2) of symmetric, positive semi-definite matrices A (..., C, C).

    The result and its gradient are finite if eps > 0.
    """
    if matrix.shape[-1] == CLOSED_FORM_SIZE:
        return _inverse_root_2x2(matrix, eps)
    root: Tensor = _ByEigenvalues.apply(matrix, eps)  # type: ignore[no-untyped-call]
    return root


def principal_axes(matrix: Tensor, eps: float) -> Tensor:
    """Return U (L + eps I)^(-1/2) of symmetric matrices U L U^T (..., C, C), without gradient.

    The columns are ordered by descending eigenvalue. The sign of an eigenvector is arbitrary, so it is chosen to make
    the entry with the largest absolute value positive. The axes then agree from step to step.
    """
    vectors, roots = _axes(matrix.detach(), eps)
    largest = vectors.gather(-2, vectors.abs().argmax(-2, keepdim=True))
    return (vectors * largest.sign() / roots[..., None, :]).flip(-1)


def _inverse_root_2x2(matrix: Tensor, eps: float) -> Tensor:
    """Compute B^(-1/2) of matrices B = A + eps I (..., 2, 2) in closed form.

    The formula is ((t + s) I - B) / (s sqrt(t + 2 s)), where s^2 is the determinant of B, and t is its trace. For 1,152
    matrices, an eigendecomposition by LAPACK takes six times as long. On a GPU, the host would have to wait for the
    eigendecomposition.
    """
    a, b, d = matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 1, 1]
    trace = a + d + 2 * eps
    s = ((a * d - b * b).clamp_min(0) + eps * (a + d) + eps * eps).sqrt()
    adjugate = torch.stack([d + eps + s, -b, -b, a + eps + s], dim=-1).reshape(matrix.shape)
    return adjugate / (s * (trace + 2 * s).sqrt())[..., None, None]


class _ByEigenvalues(torch.autograd.Function):
    """(A + eps I)^(-1/2) with the derivative of Daleckii and Krein.

    The gradient of `eigh` divides by differences of eigenvalues, so it is NaN if two eigenvalues are equal. This
    derivative divides by sums instead. Its coefficients are -1 / (s_i s_j (s_i + s_j)), where s are the square roots of
    the eigenvalues of A + eps I.
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
    """Return the eigenvectors of `matrix` A in columns, and the square roots of the eigenvalues of A + eps I.

    Negative eigenvalues of A come from rounding, and are set to 0 before eps is added. If A is not finite, all square
    roots are NaN.
    """
    # LAPACK raises an error for NaN. With roots of NaN, the loss shows the divergence, as with any other objective.
    finite = matrix.isfinite().all()
    eigenvalues, vectors = torch.linalg.eigh(torch.where(finite, matrix, 0.0))
    return vectors, torch.where(finite, (eigenvalues.clamp_min(0) + eps).sqrt(), torch.nan)
