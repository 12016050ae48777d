"""Self-retrieval, a score without labels: one half of a sentence has to retrieve the other half."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from training.corpus.words import starts
from training.evaluation.vectors import Encode, unit_vectors

METRIC = "self_retrieval_mrr10"
LEAST_WORDS = 4


def halves(sentence: str) -> tuple[str, str] | None:
    """Split a sentence by words into two halves. If the number of words is odd, the first half is longer.

    The result is None if the sentence has too few words.
    """
    flat = " ".join(sentence.split())
    words = starts(flat)
    if len(words) < LEAST_WORDS:
        return None
    middle = words[(len(words) + 1) // 2]
    return flat[:middle].rstrip(), flat[middle:]


def mrr10(encode: Encode, pairs: Sequence[tuple[str, str]]) -> float:
    """Compute the mean of `reciprocal_ranks`.

    Raises:
        EvaluationError: a vector is not finite.
    """
    return float(reciprocal_ranks(encode, pairs).mean())


def reciprocal_ranks(encode: Encode, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
    """Compute for each pair (n,) the mean reciprocal rank of either half as the query for the other.

    All halves are ranked, and ranks beyond 10 count as 0. Ties count against the encoder, so an encoder that gives
    every text the same vector gets the lowest score.

    Raises:
        EvaluationError: a vector is not finite.
    """
    unit = unit_vectors(encode, [half for pair in pairs for half in pair]).astype(np.float32)
    cosines = unit @ unit.T  # Rows 2i and 2i + 1 are the halves of sentence i.
    np.fill_diagonal(cosines, -np.inf)
    rows = np.arange(len(unit))
    found = cosines[rows, rows ^ 1]
    ranks = (cosines >= found[:, None]).sum(axis=1)
    values: NDArray[np.float64] = np.where(ranks <= 10, 1 / ranks, 0).reshape(-1, 2).mean(axis=1)
    return values
