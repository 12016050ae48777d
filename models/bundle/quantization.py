"""Quantised unit vectors: one byte or one bit per coordinate.

Codes are compared directly, by cosine or Hamming distance. So all dimensions have the same range, which is symmetric
around zero. A separate range for each dimension, as in sentence-transformers, would shift and stretch the space.
Separate ranges lower STS scores by 0.5 to 0.7 points, but a common range does not lower them (docs/log.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models import python_docs

Floats = NDArray[np.float32]
GREATEST = 127
SENTENCES = 128
"""Number of sentences for calibration. With 9,500 instead of 100, the range of minilm is a third larger, but STS scores
are the same."""


def calibration() -> list[str]:
    """Return sentences for calibration: first sentences of paragraphs in CPython's documentation."""
    return [paragraph.split(". ")[0] for paragraph in islice(_paragraphs(), SENTENCES)]


def limit(unit: Floats) -> float:
    """Return the largest absolute value in unit vectors (N, D)."""
    return float(np.abs(unit).max())


def write(limit: float, file: Path) -> None:
    file.write_text(json.dumps({"limit": limit, "sentences": SENTENCES}) + "\n", encoding="utf-8")


def read(file: Path) -> float:
    """Read the limit from a file that `write` wrote.

    Raises:
        ValueError: the file has no limit.
    """
    raw = json.loads(file.read_text(encoding="utf-8"))
    found = raw.get("limit") if isinstance(raw, dict) else None
    if not isinstance(found, float) or not 0 < found <= 1:
        raise ValueError("limit must be a number above 0, at most 1")
    return found


def int8(unit: Floats, limit: float) -> NDArray[np.int8]:
    """Return int8 codes (N, D) from -127 to 127. The code of 0 is 0. Coordinates beyond `limit` are clipped."""
    codes: NDArray[np.int8] = np.rint(unit * (GREATEST / limit)).clip(-GREATEST, GREATEST).astype(np.int8)
    return codes


def uint8(unit: Floats, limit: float) -> NDArray[np.uint8]:
    """Return codes (N, D) from 1 to 255: the codes of `int8` plus 128."""
    return _flip_sign_bit(int8(unit, limit)).view(np.uint8)


def ubinary(vectors: Floats) -> NDArray[np.uint8]:
    """Return codes (N, ⌈D / 8⌉) with one bit per coordinate, 1 if it is positive.

    The first coordinate is the highest bit.
    """
    return np.packbits(vectors > 0, axis=1)


def binary(vectors: Floats) -> NDArray[np.int8]:
    """Return the codes of `ubinary` minus 128."""
    return _flip_sign_bit(ubinary(vectors).view(np.int8))


def _flip_sign_bit(codes: NDArray[np.int8]) -> NDArray[np.int8]:
    """Flip the sign bit, which maps signed codes to unsigned codes and back."""
    return codes ^ np.int8(-128)


def _paragraphs() -> Iterator[str]:
    for section in python_docs.sections():
        yield from section.text.split("\n\n")
