"""GS-InfoNCE, equation 5."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.training.oracles.arrays import ViewArrays, Weights, cosine, gaussian, head


def oracle(views: ViewArrays, params: Any, weights: Weights, rng: torch.Generator) -> dict[str, float]:
    anchors, positives = ([head(x, weights) for x in view] for view in views.noisy)
    noise = gaussian(int(params.noise_ratio * len(anchors)), len(anchors[0]), rng)
    total = 0.0
    for i, anchor in enumerate(anchors):
        sentences = [math.exp(cosine(anchor, positive) / params.temperature) for positive in positives]
        smooth = sum(math.exp(cosine(anchor, g) / params.temperature) for g in noise)
        total -= math.log(sentences[i] / (sum(sentences) + params.noise_weight * smooth))
    return {"info_nce": total / len(anchors)}
