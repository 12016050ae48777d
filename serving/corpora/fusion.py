"""Fusion of a dense and a lexical ranking of the same passages."""

from __future__ import annotations

from typing import Literal

import numpy as np

from models.runtimes.base import Floats
from serving.corpora.indexes.exact import best, rounded, union
from serving.corpora.ports import Keys, Ranking

RRF_CONSTANT = 60
"""The constant of Cormack, Clarke and Büttcher 2009, "Reciprocal rank fusion outperforms Condorcet and …"."""
Fusion = Literal["rrf", "weighted"]


def fuse(dense: Ranking, lexical: Ranking, k: int, fusion: Fusion, alpha: float) -> Ranking:
    """Return the best `k` of both rankings. `alpha` in [0, 1] is the weight of `dense` in a weighted sum.

    `rrf`: the sum of 1 / (60 + rank), with ranks from 1, over the rankings that contain the passage. `weighted`: the
    weighted sum of scores. The scores of each ranking are first scaled to [0, 1]: its last passage gets 0, and its
    first passage gets 1. A passage that is missing in a ranking scores 0 there.
    """
    keys: Keys = union(dense.keys, lexical.keys)
    scores = np.zeros(len(keys))
    for ranking, weight in ((dense, alpha), (lexical, 1 - alpha)):
        part = _reciprocal(ranking) if fusion == "rrf" else weight * scaled_to_one(ranking)
        scores[np.searchsorted(keys, ranking.keys)] += part
    return best(keys, rounded(scores.astype(np.float32)), k)


def continued(ranking: Ranking, others: Ranking, k: int) -> Ranking:
    """Return the first `k` passages of `ranking`, followed by the missing passages of `others` with score 0."""
    behind = others.keys[~np.isin(others.keys, ranking.keys)]
    scores = np.concatenate([ranking.scores, np.zeros(len(behind), np.float32)])
    return Ranking(np.concatenate([ranking.keys, behind])[:k], scores[:k])


def _reciprocal(ranking: Ranking) -> Floats:
    ranks = 1.0 / (RRF_CONSTANT + 1 + np.arange(len(ranking.keys)))
    return ranks.astype(np.float32)


def scaled_to_one(ranking: Ranking) -> Floats:
    """Return the scores scaled to [0, 1]. If all scores are equal, all become 1, because a match is evidence."""
    scores = ranking.scores.astype(np.float32)
    if not len(scores):
        return scores
    low, high = scores.min(), scores.max()
    scaled: Floats = (scores - low) / (high - low) if high > low else np.ones_like(scores)
    return scaled
