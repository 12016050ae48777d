"""Clustered vectors, which resemble vectors of texts.

Vectors without clusters are unsuitable for tests, because all indexes have a low recall on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Vectors = np.ndarray[Any, np.dtype[np.float32]]
BLOCK = 50_000
SPREAD = 1.0
"""Mean norm of the noise added to a unit centre. Cosines within a cluster are about 1 / (1 + SPREAD^2)."""


def mixture(rows: int, dim: int, *, clusters: int, part: int = 0) -> Iterator[Vectors]:
    """Yield blocks (n, D) of unit vectors of a Gaussian mixture, with `rows` vectors in total.

    Each `part` has different samples of the same mixture. Centres are drawn from the sphere, and cluster sizes are
    unequal (Zipf). All clusters share one randomly rotated covariance. Its j-th eigenvalue is proportional to 1 / j,
    because embeddings have few important directions.
    """
    shape = np.random.default_rng(0)
    centres = _unit(shape.standard_normal((clusters, dim)))
    rotation, _ = np.linalg.qr(shape.standard_normal((dim, dim)))
    scales = np.sqrt(1 / np.arange(1, dim + 1))
    scales *= SPREAD / np.linalg.norm(scales)
    axes = (rotation * scales).T.astype(np.float32)  # (D, D)
    shares = 1 / np.arange(1, clusters + 1) ** 0.5
    draw = np.random.default_rng([1, part])
    for start in range(0, rows, BLOCK):
        size = min(BLOCK, rows - start)
        chosen = draw.choice(clusters, size, p=shares / shares.sum())
        noise = draw.standard_normal((size, dim), dtype=np.float32) @ axes
        yield _unit(centres[chosen] + noise)


def on_disk(file: Path, rows: int, dim: int) -> Vectors:
    """Write `rows` vectors (N, D) to a file, and return them memory-mapped. The mixture has √`rows` clusters."""
    written = np.lib.format.open_memmap(file, "w+", np.float32, (rows, dim))
    start = 0
    for block in mixture(rows, dim, clusters=round(rows**0.5)):
        written[start : start + len(block)] = block
        start += len(block)
    written.flush()
    mapped: Vectors = np.load(file, mmap_mode="r")
    return mapped


def _unit(vectors: np.ndarray[Any, np.dtype[Any]]) -> Vectors:
    unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit
