"""The one order of hits that every index answers in."""

from __future__ import annotations

import numpy as np

from serving.ports import Floats, Keys, Ranking

DECIMALS = 6
"""float32 sums differ in the last bit with the place of a row in the matrix: equal vectors must stay equal."""


def rounded(scores: Floats) -> Floats:
    """Scores at the precision that is compared and shown."""
    return np.round(scores, DECIMALS)


def best(keys: Keys, scores: Floats, k: int) -> Ranking:
    """The `k` best by score, equal scores oldest (lowest key) first. `scores` are `rounded` already."""
    if k < len(keys):  # every score that ties with the k-th stays in play
        worst_kept = np.partition(scores, len(scores) - k)[len(scores) - k]
        in_play = scores >= worst_kept
        keys, scores = keys[in_play], scores[in_play]
    order = np.lexsort((keys, -scores))[:k]
    return Ranking(keys[order], scores[order])
