"""Vectors that lie in clusters, as those of texts do: with noise every index looks bad, and none different."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Vectors = np.ndarray[Any, np.dtype[np.float32]]
BLOCK = 50_000
SPREAD = 1.0
"""Length of what is added to a unit centre, on average: within a cluster cosines are about 1 / (1 + SPREAD^2)."""


def mixture(rows: int, dim: int, *, clusters: int, part: int = 0) -> Iterator[Vectors]:
    """Blocks of unit vectors (n, D), `rows` in all, of a Gaussian mixture; each `part` has other vectors of the same.

    Centres drawn from the sphere, of unlike sizes (Zipf), one covariance for all: in a random rotation its j-th
    eigenvalue is proportional to 1 / j, for embeddings have few directions that matter.
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
    """So many of them (N, D), with as many clusters as the square root of `rows`, in a file that is mapped."""
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
