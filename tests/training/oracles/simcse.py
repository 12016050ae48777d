"""SimCSE, equation 4."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.training.oracles.arrays import ViewArrays, Weights, cosine, head


def oracle(views: ViewArrays, params: Any, weights: Weights, rng: torch.Generator) -> dict[str, float]:
    anchors, positives = ([head(x, weights) for x in view] for view in views.noisy)
    total = 0.0
    for i, anchor in enumerate(anchors):
        exponentials = [math.exp(cosine(anchor, positive) / params.temperature) for positive in positives]
        total -= math.log(exponentials[i] / sum(exponentials))
    return {"info_nce": total / len(anchors)}
