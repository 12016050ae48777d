"""Unit vectors in fewer bytes: a byte for each number, or a bit.

Codes are compared as they are, by cosine or Hamming distance, by whoever gets them. So one range holds for all
dimensions and is the same on both sides of zero: a range for each dimension, as sentence-transformers has them, moves
and stretches the space, and cost 0.5 to 0.7 of STS where this costs nothing (docs/log.md).
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
"""Of the calibration. From 100 to 9,500 of them the range of minilm grew by a third, and its STS did not move."""


def calibration() -> list[str]:
    """Sentences to find a range with: the first of paragraphs of the documentation that every CPython carries."""
    return [paragraph.split(". ")[0] for paragraph in islice(_paragraphs(), SENTENCES)]


def limit(unit: Floats) -> float:
    """What no number of the unit vectors (N, D) lies beyond."""
    return float(np.abs(unit).max())


def write(limit: float, file: Path) -> None:
    """As JSON."""
    file.write_text(json.dumps({"limit": limit, "sentences": SENTENCES}) + "\n", encoding="utf-8")


def read(file: Path) -> float:
    """The limit that `write` wrote.

    Raises:
        ValueError: there is none in the file.
    """
    raw = json.loads(file.read_text(encoding="utf-8"))
    found = raw.get("limit") if isinstance(raw, dict) else None
    if not isinstance(found, float) or not 0 < found <= 1:
        raise ValueError("limit must be a number above 0, at most 1")
    return found


def int8(unit: Floats, limit: float) -> NDArray[np.int8]:
    """(N, D) in -127 … 127, 0 staying 0; what lies beyond `limit` becomes the end of the range."""
    codes: NDArray[np.int8] = np.rint(unit * (GREATEST / limit)).clip(-GREATEST, GREATEST).astype(np.int8)
    return codes


def uint8(unit: Floats, limit: float) -> NDArray[np.uint8]:
    """(N, D) in 1 … 255: `int8` and 128."""
    return _other_sign(int8(unit, limit)).view(np.uint8)


def ubinary(vectors: Floats) -> NDArray[np.uint8]:
    """(N, ⌈D / 8⌉): a bit is 1 where its number is greater than 0, the first bit the highest of its byte."""
    return np.packbits(vectors > 0, axis=1)


def binary(vectors: Floats) -> NDArray[np.int8]:
    """`ubinary` less 128."""
    return _other_sign(ubinary(vectors).view(np.int8))


def _other_sign(codes: NDArray[np.int8]) -> NDArray[np.int8]:
    """128 more or less, without leaving the byte."""
    return codes ^ np.int8(-128)


def _paragraphs() -> Iterator[str]:
    for section in python_docs.sections():
        yield from section.text.split("\n\n")
