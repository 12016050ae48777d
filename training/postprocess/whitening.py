"""BERT-whitening: a linear map to vectors with mean 0 and identity covariance, or a partial whitening.

Su, Cao, Liu and Ou, "Whitening Sentence Representations for Better Semantics and Faster Retrieval" (2021),
arXiv:2103.15316.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO

import torch
from torch import Tensor

from models.encoder.encoder import Encoder
from models.encoder.transform import Affine
from training.data.corpus import Corpus
from training.postprocess import base

NEGLIGIBLE = 1e-12
"""Smallest variance that is treated as non-zero, relative to the largest variance.

A last layer norm leaves all vectors in a hyperplane, and coordinates can be constant. Along such directions, vectors in
float32 contain only rounding errors, which whitening would amplify.
"""


@dataclass(frozen=True, kw_only=True)
class WhiteningParams:
    """Parameters of whitening."""

    dims: int | None = None
    """k, the number of leading directions that are kept. None keeps all directions with variance.

    The paper keeps 256 directions of base models, and 384 of large models.
    """
    power: float = 1.0
    """Strength of whitening: a variance s becomes s ** (1 - power).

    A power of 1 whitens fully, as in the paper. A lower power is partial whitening, which keeps a part of the
    differences in variance.
    """
    centred: bool = True
    """True if the mean is subtracted, as in the paper."""

    def __post_init__(self) -> None:
        base.check_above_zero(self, "dims")
        if not 0 <= self.power <= 1:
            raise ValueError(f"power: {self.power} is not between 0 and 1")


class Moments:
    """Running mean and covariance of a stream of vectors, in float64 and in D x D memory.

    Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance: Analysis and Recommendations" (The American
    Statistician 37, 1983), doi:10.1080/00031305.1983.10483115.
    """

    def __init__(self, dim: int) -> None:
        self.count = 0
        self.mean = torch.zeros(dim, dtype=torch.float64)
        self._scatter = torch.zeros(dim, dim, dtype=torch.float64)

    def add(self, vectors: Tensor) -> None:
        """Update mean and covariance with N vectors (N, D)."""
        batch = vectors.double()
        mean = batch.mean(0)
        total = self.count + len(batch)
        centred, offset = batch - mean, mean - self.mean
        self._scatter += centred.T @ centred + offset.outer(offset) * (self.count * len(batch) / total)
        self.mean += offset * (len(batch) / total)
        self.count = total

    def covariance(self) -> Tensor:
        """Return the covariance (D, D) of all N vectors, with divisor N - 1."""
        return self._scatter / (self.count - 1)


def whitening_matrix(covariance: Tensor, dims: int | None = None, power: float = 1.0) -> Tensor:
    """Compute the first k columns of W = U diag(s ** (-power / 2)) for partial whitening.

    U and s are from the decomposition covariance = U diag(s) U'. The variances s are in descending order. Shapes:
    (D, D) to (D, k). k is `dims`, or the number of directions with non-zero variance. A power of 1 whitens, and a power
    of 0 only rotates.

    Raises:
        PostprocessError: no direction has variance, or fewer than `dims` directions have variance.
    """
    directions, variances, _ = torch.linalg.svd(covariance)
    varying = int((variances > NEGLIGIBLE * variances[0]).sum())
    kept = dims or varying
    if not 0 < kept <= varying:
        raise base.PostprocessError(
            f"only {varying} of {len(variances)} directions vary over this corpus, so dims={kept} is too high"
            if varying
            else "all sentences have the same vector: there is nothing to whiten"
        )
    whitening: Tensor = directions[:, :kept] * variances[:kept] ** (-power / 2)
    return whitening


def fit(encoder: Encoder, corpus: Corpus, params: WhiteningParams, seed: int, stream: TextIO) -> base.Fitted:
    """Fit the whitening of the corpus's vectors.

    Raises:
        PostprocessError: `dims` exceeds the width, the corpus has too few sentences, or the vectors vary in too few
            directions.
    """
    wanted = params.dims or encoder.dim
    if wanted > encoder.dim:
        raise base.PostprocessError(f"dims: {wanted} is above {encoder.dim}, the width of the vectors")
    purpose = f"to whiten {wanted} dimensions"
    base.check_sentences(corpus, wanted + 1, purpose, ", and a good estimate needs many more")
    moments = Moments(encoder.dim)
    for vectors in base.pooled_batches(encoder, corpus, size=1024, seed=seed, stream=stream):
        moments.add(vectors)
    matrix = whitening_matrix(moments.covariance(), params.dims, params.power)
    mean = moments.mean if params.centred else torch.zeros_like(moments.mean)
    return base.Fitted(Affine.of(mean.float(), matrix.float()), {"sentences": moments.count})


CITATION = """\
@article{su2021whitening,
  title = {Whitening Sentence Representations for Better Semantics and Faster Retrieval},
  author = {Su, Jianlin and Cao, Jiarun and Liu, Weijie and Ou, Yangyiwen},
  journal = {arXiv preprint arXiv:2103.15316},
  year = {2021},
  url = {https://arxiv.org/abs/2103.15316}
}
"""

POSTPROCESS = base.Postprocess(
    summary="BERT-whitening: vectors with mean zero and identity covariance, leading directions first; full or partial",
    citation=CITATION,
    params=WhiteningParams(),
    fit=fit,
)
