"""Quantisation of unit vectors: one byte or one bit per component.

Quantised vectors are compared directly, by cosine or Hamming distance. Therefore all dimensions share one range, which
is symmetric around zero. Separate ranges for each dimension, as in sentence-transformers, would shift and stretch the
space. Separate ranges lower STS scores by 0.5 to 0.7 points, but a shared range does not lower them (docs/log.md).
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models import python_docs

Floats = NDArray[np.float32]
GREATEST = 127
SENTENCES = 128
"""Number of sentences for calibration.

The number hardly matters. For minilm, the range from 9,500 paragraphs is a third larger than the range from 100
paragraphs, but STS scores are the same.
"""


def calibration() -> list[str]:
    """Return the sentences for calibration, which are the first sentences of paragraphs in CPython's documentation."""
    paragraphs = (paragraph for section in python_docs.sections() for paragraph in section.text.split("\n\n"))
    return [paragraph.split(". ")[0] for paragraph in islice(paragraphs, SENTENCES)]


def limit(unit: Floats) -> float:
    """Return the largest absolute component of unit vectors (N, D)."""
    return float(np.abs(unit).max())


def write(limit: float, file: Path) -> None:
    file.write_text(json.dumps({"limit": limit, "sentences": SENTENCES}) + "\n", encoding="utf-8")


def read(file: Path) -> float:
    """Read the limit beyond which components are clipped, from a file that `write` wrote.

    Raises:
        ValueError: the file is not JSON, or has no limit above 0 and at most 1.
    """
    raw = json.loads(file.read_text(encoding="utf-8"))
    found = raw.get("limit") if isinstance(raw, dict) else None
    if not isinstance(found, float) or not 0 < found <= 1:
        raise ValueError("limit must be a number above 0 and at most 1")
    return found


def int8(unit: Floats, limit: float) -> NDArray[np.int8]:
    """Return int8 vectors (N, D), scaled so that a component equal to `limit` becomes 127.

    Zero stays zero. Components above `limit` also become 127, and components below -`limit` become -127.
    """
    codes: NDArray[np.int8] = np.rint(unit * (GREATEST / limit)).clip(-GREATEST, GREATEST).astype(np.int8)
    return codes


def uint8(unit: Floats, limit: float) -> NDArray[np.uint8]:
    """Return the result of `int8` plus 128, as uint8 vectors (N, D) with components from 1 to 255."""
    return _flip_sign_bit(int8(unit, limit)).view(np.uint8)


def ubinary(vectors: Floats) -> NDArray[np.uint8]:
    """Return bit vectors, packed into bytes (N, ⌈D / 8⌉). A bit is 1 if the component is positive.

    The first component is the highest bit of the first byte.
    """
    return np.packbits(vectors > 0, axis=1)


def binary(vectors: Floats) -> NDArray[np.int8]:
    """Return the bytes of `ubinary`, each minus 128, as int8 vectors (N, ⌈D / 8⌉)."""
    return _flip_sign_bit(ubinary(vectors).view(np.int8))


def _flip_sign_bit(codes: NDArray[np.int8]) -> NDArray[np.int8]:
    """Flip the sign bit, which converts between signed and unsigned bytes."""
    return codes ^ np.int8(-128)
