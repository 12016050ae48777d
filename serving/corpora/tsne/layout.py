"""Layout of vectors on a plane by t-SNE (van der Maaten and Hinton 2008), with the settings of openTSNE.

The layout starts from the principal components. This preserves the relative positions of clusters (Kobak and Berens
2019). A single thread computes the layout, so the same vectors always get the same map.
"""

from __future__ import annotations

from collections.abc import Callable

import faiss
import numpy as np
from numpy.typing import NDArray
from openTSNE import TSNEEmbedding
from openTSNE.affinity import PerplexityBasedNN
from openTSNE.initialization import jitter, rescale
from openTSNE.nearest_neighbors import PrecomputedNeighbors

from serving.corpora.maps import project

Floats = NDArray[np.float32]
Report = Callable[[int, int], None]
"""Function that receives the number of finished steps and the number of all steps."""
SEED = 0
FEWEST = 8
"""Minimum number of vectors for t-SNE. Fewer vectors get the coordinates of their principal components."""
PERPLEXITY = 30
EXACT = 4096
"""Maximum number of vectors for which neighbours are found by comparing all pairs."""
PROBED = 16
"""Number of lists of the inverted-file index that are searched for the neighbours of a vector."""
PHASES = (250, 12.0, 0.5), (500, 1.0, 0.8)
"""For each phase: number of iterations, exaggeration of the attraction, and momentum, as in openTSNE."""
STEPS = 1000
"""Number of steps of the whole work, for progress. The steps of the search for neighbours come before the steps of the
phases."""
REPORTED_EVERY = 5
BLOCK = 1000
"""Number of vectors whose neighbours are searched in one call."""
DECIMALS = 4


def placed(vectors: Floats, report: Report) -> NDArray[np.float64]:
    """Compute the (N, 2) coordinates of (N, D) unit vectors on a plane. Call `report` with the progress."""
    faiss.omp_set_num_threads(1)
    first, _ = project(vectors)
    if len(vectors) < FEWEST or not first.any():
        return first
    before = STEPS - sum(iterations for iterations, *_ in PHASES)
    indices, distances = neighbours(vectors, lambda share: report(int(share * before), STEPS))
    affinities = PerplexityBasedNN(
        knn_index=PrecomputedNeighbors(indices, distances), perplexity=min(PERPLEXITY, len(indices[0]) / 3), n_jobs=1
    )
    start = jitter(rescale(first), random_state=SEED)  # t-SNE can't leave a line if all points are on it
    layout = TSNEEmbedding(start, affinities, n_jobs=1)
    for iterations, exaggeration, momentum in PHASES:

        def told(done: int, *_: object, before: int = before) -> None:
            report(before + done, STEPS)

        layout.optimize(
            iterations,
            inplace=True,
            exaggeration=exaggeration,
            momentum=momentum,
            callbacks=told,
            callbacks_every_iters=REPORTED_EVERY,
        )
        before += iterations
    return np.round(np.asarray(layout), DECIMALS)


def neighbours(vectors: Floats, report: Callable[[float], None]) -> tuple[NDArray[np.int64], Floats]:
    """Return the indices (N, K) of the K nearest other vectors of each vector, and the distances (N, K) to them.

    For more than `EXACT` vectors, the search is approximate. `report` is called with the finished share, from 0 to 1.
    """
    count, dim = vectors.shape
    wanted = min(3 * PERPLEXITY, count - 1)
    index: faiss.Index = faiss.IndexFlatIP(dim)
    if count > EXACT:
        index = faiss.IndexIVFFlat(index, dim, lists := int(count**0.5), faiss.METRIC_INNER_PRODUCT)
        index.nprobe = PROBED
        index.train(vectors)
    index.add(vectors)
    indices, distances = np.empty((count, wanted), np.int64), np.empty((count, wanted), np.float32)
    for start in range(0, count, BLOCK):
        some = slice(start, start + BLOCK)
        cosines, found = index.search(vectors[some], wanted + 1)
        if (few := (found < 0).any(axis=1)).any():  # the searched lists have fewer than K vectors
            index.nprobe = lists
            cosines[few], found[few] = index.search(vectors[some][few], wanted + 1)
            index.nprobe = PROBED
        itself = found == np.arange(start, start + len(found))[:, None]
        # If there are more equal vectors than neighbours, the vector itself may be missing.
        itself[~itself.any(axis=1), -1] = True
        indices[some] = found[~itself].reshape(-1, wanted)
        distances[some] = np.sqrt(np.maximum(0, 2 - 2 * cosines[~itself])).reshape(-1, wanted)
        report(min(1.0, (start + BLOCK) / count))
    return indices, distances
