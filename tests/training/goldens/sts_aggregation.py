"""SentEval's aggregation over the subsets of a task."""

from __future__ import annotations

import numpy as np
import torch

from tests.training.goldens.golden import Golden
from training.evaluation import sts


def check(golden: Golden, dtype: torch.dtype) -> None:
    cosines, golds = {}, {}
    for name in golden.facts["sizes"]:
        a, b = (golden[f"emb{side}_{name}"].double().numpy() for side in (1, 2))
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosines[name] = (a * b).sum(axis=1) / np.where(norms > 0, norms, 1)
        golds[name] = golden[f"gold_{name}"].double().numpy()
    score = sts.aggregate(cosines, golds, task="golden")
    for kind in ("spearman", "pearson"):
        aggregates = getattr(score, kind)
        for aggregation in ("all", "mean", "wmean"):
            golden.close(getattr(aggregates, aggregation) / 100, f"official_{kind}_{aggregation}")
        for name, subset in score.subsets.items():
            golden.close(getattr(subset, kind) / 100, f"official_{kind}_{name}")
