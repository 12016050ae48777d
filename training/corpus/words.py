"""Word boundaries in any language, as far as they are detectable without a dictionary."""

from __future__ import annotations

import re

from models.scripts import UNSPACED

_WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


def starts(sentence: str) -> list[int]:
    """Find the starts of words: after spaces and, in scripts without spaces, at each character."""
    return [found.start() for found in _WORD.finditer(sentence)]
