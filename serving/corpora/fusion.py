"""Two rankings of the same passages made one: by meaning and by words."""

from __future__ import annotations

from typing import Literal

import numpy as np

from serving.indexes.ranking import best, rounded
from serving.ports import Floats, Keys, Ranking
from serving.sets import union

RRF_CONSTANT = 60
"""Cormack, Clarke and Büttcher 2009, "Reciprocal rank fusion outperforms Condorcet and …", whose 60 it is."""
Fusion = Literal["rrf", "weighted"]


def fuse(dense: Ranking, lexical: Ranking, k: int, fusion: Fusion, alpha: float) -> Ranking:
    """The best `k` of both; `alpha` in [0, 1] is the share of `dense` in a weighted sum.

    `rrf`: the sum of 1 / (60 + rank), ranks from 1, over the rankings that a passage is in. `weighted`: the sum of
    scores, each ranking's scaled to [0, 1] between its last and its first; a passage that a ranking lacks has 0 of it.
    """
    keys: Keys = union(dense.keys, lexical.keys)
    scores = np.zeros(len(keys))
    for ranking, weight in ((dense, alpha), (lexical, 1 - alpha)):
        part = _reciprocal(ranking) if fusion == "rrf" else weight * _scaled(ranking)
        scores[np.searchsorted(keys, ranking.keys)] += part
    return best(keys, rounded(scores.astype(np.float32)), k)


def continued(ranking: Ranking, others: Ranking, k: int) -> Ranking:
    """The first `k` of `ranking` and then of `others`, in whose order come those that it lacks, with a score of 0."""
    behind = others.keys[~np.isin(others.keys, ranking.keys)]
    scores = np.concatenate([ranking.scores, np.zeros(len(behind), np.float32)])
    return Ranking(np.concatenate([ranking.keys, behind])[:k], scores[:k])


def _reciprocal(ranking: Ranking) -> Floats:
    ranks = 1.0 / (RRF_CONSTANT + 1 + np.arange(len(ranking.keys)))
    return ranks.astype(np.float32)


def _scaled(ranking: Ranking) -> Floats:
    """All ones where the scores are the same: being found at all says something."""
    scores = ranking.scores.astype(np.float32)
    if not len(scores):
        return scores
    low, high = scores.min(), scores.max()
    scaled: Floats = (scores - low) / (high - low) if high > low else np.ones_like(scores)
    return scaled
