"""Geometry of an encoder's vectors: measures that papers use to explain task scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.evaluation.pairs import Pair
from training.evaluation.vectors import Encode, EvaluationError, unit_vectors

Floats = NDArray[np.float64]

BLOCK = 1024
"""Number of rows of a cosine matrix that are computed at a time."""
CLOSE = 4.0
"""Gold score that separates positive pairs from other pairs, for alignment."""
HISTOGRAM_BATCH = 256
HISTOGRAM_BINS = 40
TOP = 4
TOP_BATCHES = (32, 64, 128, 256, 512, 1024)
RANK_BATCH = 64
MOST_BATCHES = 16
"""Maximum number of batches over which a measure is averaged."""
NEAREST_BATCHES = 100
"""Maximum number of batches in a mean over nearest neighbours, as in GS-InfoNCE's Figure 1."""


@dataclass(frozen=True)
class Spectrum:
    """Singular values of N vectors, and their effective rank. The values are descending, and divided by their sum."""

    effective_rank: float
    values: tuple[float, ...]


@dataclass(frozen=True)
class Histogram:
    """The share of values in each bin between two edges."""

    edges: tuple[float, ...]
    share: tuple[float, ...]


@dataclass(frozen=True)
class Geometry:
    """Results of `evaluate`. Most fields are defined by the function of the same name."""

    alignment: float
    """Alignment of the pairs with a gold score above 4 (SimCSE's text)."""
    alignment_at_least_4: float
    """Alignment of the pairs with a gold score of 4 or above (DCLR's code)."""
    uniformity: float
    """Uniformity of all texts of all pairs."""
    random_cosine_mean: float
    random_cosine_sd: float
    spectrum: Spectrum
    spectrum_centred: Spectrum
    """Spectrum of the vectors minus their mean."""
    cosine_histogram: Histogram
    top4_cosine: Mapping[int, float]
    """Mean cosine of the four nearest in-batch neighbours. The keys are batch sizes, up to the number of sentences."""
    nearest_cosines: Mapping[int, tuple[float, ...]]
    """Mean cosine of each of the four nearest in-batch neighbours, nearest first. The keys are batch sizes."""
    correlation_rank: int
    correlation_rank_of_64: float | None
    """Mean of `correlation_rank` over batches of 64 sentences, or None if there are fewer sentences."""
    pairs: int
    sentences: int
    dim: int
    seed: int


def of_pairs(encode: Encode, pairs: Sequence[Pair]) -> dict[str, float]:
    """Compute the measures that a run monitors: `alignment`, `uniformity` and `effective_rank`.

    Alignment is computed from the pairs with a gold score above 4. Uniformity is computed from both texts of all pairs.
    The effective rank is computed from the uncentred vectors of the distinct texts.

    Raises:
        EvaluationError: a vector is not finite, all vectors are zero, or no pair has a gold score above 4.
    """
    close = _close(pairs)
    unit, rows = _encoded(encode, [pair.a for pair in pairs] + [pair.b for pair in pairs])
    a, b = np.split(unit[rows], 2)
    return {
        "alignment": alignment(a[close], b[close]),
        "uniformity": uniformity(unit, np.bincount(rows)),
        "effective_rank": spectrum(unit).effective_rank,
    }


def _close(pairs: Sequence[Pair]) -> NDArray[np.bool_]:
    close: NDArray[np.bool_] = np.array([pair.gold for pair in pairs]) > CLOSE
    if not close.any():
        raise EvaluationError(f"none of {len(pairs)} pairs has a gold score above {CLOSE:g}, so there is no alignment")
    return close


def evaluate(
    encode: Encode, pairs: Sequence[Pair], *, sentences: Sequence[str] | None = None, seed: int = 0
) -> Geometry:
    """Measure alignment and uniformity on `pairs`, and everything else on the distinct `sentences`.

    `sentences` defaults to the texts of the pairs. The sentences are shuffled with `seed` before they are split into
    batches.

    Raises:
        EvaluationError: a vector is not finite, no pair has a gold score above 4, there are fewer than two distinct
            sentences, or all sentences have the same vector.
    """
    golds = np.array([pair.gold for pair in pairs])
    close = _close(pairs)
    texts = [pair.a for pair in pairs] + [pair.b for pair in pairs]
    unit, rows = _encoded(encode, texts)
    a, b = np.split(unit[rows], 2)
    uniform = uniformity(unit, np.bincount(rows))
    if sentences is not None:
        unit, _ = _encoded(encode, sentences)
    if len(unit) < 2:
        raise EvaluationError(f"{len(unit)} different sentences, expected at least two")
    shuffled = unit[np.random.default_rng(seed).permutation(len(unit))]
    nearest = {size: nearest_cosines(shuffled, size) for size in TOP_BATCHES if size <= len(unit)}
    ranks = [correlation_rank(batch) for batch in _batches(shuffled, RANK_BATCH)]
    mean, deviation = random_cosines(unit)
    return Geometry(
        alignment=alignment(a[close], b[close]),
        alignment_at_least_4=alignment(a[golds >= CLOSE], b[golds >= CLOSE]),
        uniformity=uniform,
        random_cosine_mean=mean,
        random_cosine_sd=deviation,
        spectrum=spectrum(unit),
        spectrum_centred=spectrum(unit - unit.mean(axis=0)),
        cosine_histogram=cosine_histogram(shuffled),
        top4_cosine={size: float(np.mean(cosines)) for size, cosines in nearest.items()},
        nearest_cosines=nearest,
        correlation_rank=correlation_rank(unit),
        correlation_rank_of_64=float(np.mean(ranks)) if ranks else None,
        pairs=len(pairs),
        sentences=len(unit),
        dim=unit.shape[1],
        seed=seed,
    )


def _encoded(encode: Encode, texts: Sequence[str]) -> tuple[Floats, NDArray[np.int64]]:
    """Encode each distinct text once. Return the unit vectors, and for each of `texts` the row of its vector."""
    rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    return unit_vectors(encode, list(rows)), np.array([rows[text] for text in texts])


def alignment(a: Floats, b: Floats) -> float:
    """Compute the mean of ||x - y||² over the rows x of `a` (N, D) and the corresponding rows y of `b` (N, D).

    The best possible value is 0. This is the alignment of Wang and Isola (2020) with alpha = 2.
    """
    return float(((a - b) ** 2).sum(axis=1).mean())


def uniformity(unit: Floats, counts: NDArray[np.int64] | None = None) -> float:
    """Compute the log of the mean of e^(-2 ||x - y||²) over all pairs of the N unit vectors (N, D).

    `counts` (N,) has the multiplicity of each vector, by default 1. The result is exact. Orthogonal vectors give -4,
    and equal vectors give 0 (Wang and Isola 2020, t = 2).

    Raises:
        EvaluationError: there are fewer than two vectors.
    """
    times = np.ones(len(unit)) if counts is None else counts.astype(np.float64)
    pairs = times.sum() * (times.sum() - 1) / 2
    if not pairs:
        raise EvaluationError(f"uniformity needs at least two vectors, got {int(times.sum())}")
    squares = (unit**2).sum(axis=1)
    total = float((times * (times - 1) / 2).sum())  # Pairs of equal vectors contribute e^0 each.
    for start in range(0, len(unit), BLOCK):
        block = slice(start, start + BLOCK)
        distances = squares[block, None] + squares[None, start:] - 2 * unit[block] @ unit[start:].T
        kernel = np.exp(-2 * np.maximum(distances, 0))
        total += float(times[block] @ np.triu(kernel, k=1) @ times[start:])
    return float(np.log(total / pairs))


def random_cosines(unit: Floats) -> tuple[float, float]:
    """Return mean and standard deviation of the cosines of all pairs of different rows of `unit` (N, D).

    The mean is the anisotropy of Ethayarajh (2019), who samples pairs. Here, mean and deviation are exact and are
    computed without enumerating pairs, from the sum of all cosines and the sum of their squares. The first sum is the
    squared length of the sum of the rows. The second sum is the squared Frobenius norm of U^T U, where U is `unit`. The
    cosines of rows with themselves are subtracted from both sums.
    """
    pairs = len(unit) * (len(unit) - 1)
    own = (unit**2).sum(axis=1)
    mean = float(((unit.sum(axis=0) ** 2).sum() - own.sum()) / pairs)
    square = float((((unit.T @ unit) ** 2).sum() - (own**2).sum()) / pairs)
    return mean, max(square - mean**2, 0.0) ** 0.5


def spectrum(vectors: Floats) -> Spectrum:
    """Compute the singular values of `vectors` (N, D) as shares of their sum, and the effective rank.

    The effective rank is e^entropy of the shares (Roy and Vetterli 2007).

    Raises:
        EvaluationError: all vectors are zero. If the caller has subtracted the mean vector, this means that all vectors
            were equal before.
    """
    values = np.linalg.svd(vectors, compute_uv=False)
    # The tolerance is the rounding error of float32, the dtype in which the vectors were computed.
    if values[0] <= np.finfo(np.float32).eps * np.sqrt(len(vectors)):
        raise EvaluationError("all vectors are equal, or zero, so they have no spectrum")
    parts = values / values.sum()
    present = parts[parts > 0]
    entropy = -(present * np.log(present)).sum()
    return Spectrum(float(np.exp(entropy)), tuple(parts.tolist()))


def cosine_histogram(unit: Floats) -> Histogram:
    """Return a histogram of the cosines between the sentences of a batch, with 40 bins over [-1, 1].

    Batches have 256 sentences, so each sentence has 255 in-batch negatives, as in DCLR, Figure 1. Batches are
    consecutive rows of `unit` (N, D). The share of a bin is a mean over up to 16 batches. Fewer than 256 sentences are
    one batch.
    """
    shares = []
    for batch in _batches(unit, min(HISTOGRAM_BATCH, len(unit))):
        counts, _ = np.histogram(_others(batch).clip(-1, 1), bins=HISTOGRAM_BINS, range=(-1, 1))
        shares.append(counts / counts.sum())
    edges = np.linspace(-1, 1, HISTOGRAM_BINS + 1)
    return Histogram(tuple(edges.tolist()), tuple(np.mean(shares, axis=0).tolist()))


def nearest_cosines(unit: Floats, size: int) -> tuple[float, ...]:
    """Return the mean cosines of the four nearest neighbours in batches of `size`, highest first.

    A batch is `size` consecutive rows of `unit` (N, D). For each sentence, the four highest cosines to the rest of its
    batch are taken. Each result is a mean over the sentences of up to 100 batches. The cosines increase with `size`,
    because a larger batch contains nearer neighbours (GS-InfoNCE, Figure 1).

    Raises:
        EvaluationError: there are fewer than `size` rows, or `size` is below five.
    """
    if not TOP < size <= len(unit):
        raise EvaluationError(f"a batch size of {size}, expected {TOP + 1} to {len(unit)} sentences")
    batches = _batches(unit, size, most=NEAREST_BATCHES)
    nearest = [np.sort(np.partition(_others(batch), -TOP, axis=1)[:, -TOP:], axis=1).mean(axis=0) for batch in batches]
    return tuple(np.mean(nearest, axis=0)[::-1].tolist())


def correlation_rank(vectors: Floats) -> int:
    """Return the rank of the correlation matrix (D, D) of the D dimensions of `vectors` (N, D).

    The rank is at most N - 1. ImSimCSE calls N - 1 < D the rank bottleneck of a batch. As in
    `numpy.linalg.matrix_rank`, singular values count if they exceed D * eps times the largest one. eps is the precision
    of float32, the dtype in which the vectors were computed. A constant dimension does not increase the rank.
    """
    eps = float(np.finfo(np.float32).eps)
    centred = vectors - vectors.mean(axis=0)
    norms = np.linalg.norm(centred, axis=0)
    varies = norms > eps * np.linalg.norm(vectors, axis=0)
    standard = centred[:, varies] / norms[varies]
    correlations = standard.T @ standard
    return int(np.linalg.matrix_rank(correlations, rtol=vectors.shape[1] * eps, hermitian=True)) if varies.any() else 0


def _batches(unit: Floats, size: int, *, most: int = MOST_BATCHES) -> Iterator[Floats]:
    """Yield up to `most` batches of `size` consecutive rows. An incomplete last batch is left out."""
    for i in range(min(len(unit) // size, most)):
        yield unit[i * size : (i + 1) * size]


def _others(batch: Floats) -> Floats:
    """Return the cosines (B, B - 1) of each row with every other row."""
    cosines = batch @ batch.T
    return cosines[~np.eye(len(batch), dtype=bool)].reshape(len(batch), -1)
