"""Vectors for tests of search, and a plain loop that searches them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from models.runtimes.base import Floats
from serving.corpora.values import Keys

TIES = 2e-6
"""Difference of scores in float32 below which two hits may be in either order."""


def clustered(count: int, dim: int = 16, seed: int = 0, clusters: int = 20) -> Floats:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((clusters, dim))
    vectors = centres[rng.integers(clusters, size=count)] + 0.5 * rng.standard_normal((count, dim))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32)


def ranked(held: Mapping[int, Floats], query: Floats, k: int) -> list[tuple[int, float]]:
    scores = {key: round(float(np.dot(vector.astype(np.float64), query)), 6) for key, vector in held.items()}
    return sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))[:k]


def keys(values: range | list[int] | set[int]) -> Keys:
    return np.array(sorted(values), dtype=np.int64)
