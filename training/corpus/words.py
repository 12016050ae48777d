"""Words of a sentence in any language, as far as they can be told without a dictionary."""

from __future__ import annotations

import re

from models.scripts import UNSPACED

_WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


def starts(sentence: str) -> list[int]:
    """Find where words begin: behind spaces and, in scripts without them, at each character."""
    return [found.start() for found in _WORD.finditer(sentence)]
