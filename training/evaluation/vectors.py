"""The interface between evaluation and encoders: a function from texts to vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from models.errors import Failed
from training.data.sentences import word_starts

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
"""Type of a function from N texts to vectors (N, D), in order."""


class EvaluationError(Failed):
    """A score can't be computed. The message contains the reason."""


class ConstantError(EvaluationError):
    """All values are equal, so that a rank correlation is undefined."""


def unit_vectors(encode: Encode, texts: Sequence[str]) -> NDArray[np.float64]:
    """Encode `texts` to unit vectors (N, D).

    A zero vector stays zero, so its cosine with any vector is 0.

    Raises:
        EvaluationError: the number of vectors is wrong, or a vector has NaN or infinity.
    """
    vectors = np.asarray(encode(texts), dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise EvaluationError(f"{len(texts)} texts gave an array of shape {vectors.shape}")
    broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(broken):
        raise EvaluationError(
            f"{len(broken)} of {len(texts)} vectors contain NaN or infinity, the first is the vector of "
            f"{texts[broken[0]]!r}"
        )
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float64] = vectors / np.where(norms > 0, norms, 1)
    return unit


def cached(encode: Encode) -> Encode:
    """Return `encode` with a cache, so that tasks with the same texts share the vectors."""
    rows: dict[str, NDArray[np.float32]] = {}

    def look_up(texts: Sequence[str]) -> NDArray[np.float32]:
        new = [text for text in dict.fromkeys(texts) if text not in rows]
        if new:
            vectors = np.asarray(encode(new), dtype=np.float32)
            if vectors.ndim != 2 or len(vectors) != len(new):
                raise EvaluationError(f"{len(new)} texts gave an array of shape {vectors.shape}")
            rows.update(zip(new, vectors, strict=True))
        return np.stack([rows[text] for text in texts]) if texts else np.empty((0, 0), dtype=np.float32)

    return look_up


# Self-retrieval: a score without labels, in which one half of a sentence must retrieve the other half.

METRIC = "self_retrieval_mrr10"
MIN_WORDS = 4


def halves(sentence: str) -> tuple[str, str] | None:
    """Return the first and the second half of a sentence's words, or None if the sentence has too few words.

    If the number of words is odd, the first half is longer.
    """
    flat = " ".join(sentence.split())
    words = word_starts(flat)
    if len(words) < MIN_WORDS:
        return None
    middle = words[(len(words) + 1) // 2]
    return flat[:middle].rstrip(), flat[middle:]


def reciprocal_ranks(encode: Encode, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
    """Return the mean of two reciprocal ranks for each pair, as an array (n,).

    A pair has two halves. Each of them is once the query, for which its counterpart is the only right result. The
    halves of all pairs, except the query itself, are ranked. Beyond rank 10, the reciprocal rank counts as 0. Ties
    count against the encoder, so an encoder that gives every text the same vector gets the lowest score.

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
