"""BERT-whitening (bojone/BERT-whitening), compared by cosines, which do not depend on the directions' signs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from models.encoder.transform import Affine
from tests.training.goldens.golden import Golden
from training.postprocess.whitening import Moments, whitening_matrix

COSINES = "official_cos_k"


def check(golden: Golden, dtype: torch.dtype) -> None:
    """Compare mean and covariance over both sides, for each number of directions in the file."""
    first, second = golden["emb1"], golden["emb2"]
    moments = Moments(first.shape[1])
    moments.add(first)
    moments.add(second)
    golden.close(-moments.mean[None], "official_bias")
    for key in golden.keys(COSINES):
        dims = int(key.removeprefix(COSINES))
        whiten = Affine.of(moments.mean, whitening_matrix(moments.covariance(), dims)).to(dtype)
        a, b = normalize(whiten(first)), normalize(whiten(second))
        _close(golden, (a * b).sum(1), key)
        _close(golden, a @ a.T, f"official_gram_k{dims}")


def _close(golden: Golden, cosines: Tensor, key: str) -> None:
    """Compare cosines by absolute differences, because whitening amplifies rounding errors of small directions."""
    if key in golden:
        golden.compared.append(key)
        tolerance = 1e-10 if golden.dtype == torch.float64 else 1e-5
        torch.testing.assert_close(cosines, golden[key], rtol=0, atol=tolerance)
