"""JSON in: fast where it is clean, precise where it is not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import orjson

from serving.errors import Malformed

MAX_DEPTH = 32


def parse_json(body: bytes) -> Any:
    """The value of `body`.

    orjson refuses NaN, Infinity and lone surrogates outright. The standard library takes them, so that whoever
    validates the value can name the field; only what neither can read is malformed.

    Raises:
        Malformed: not JSON, or nested too deeply.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as refused:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise Malformed(f"not JSON: {refused}") from None


def unwritable(value: Any) -> str | None:
    """Why `value` can't be stored and given back as the same JSON, or None."""
    level = [value]
    for _ in range(MAX_DEPTH):
        if not level:
            return None
        if any(isinstance(one, float) and not math.isfinite(one) for one in level):
            return "numbers must be finite"
        if any(isinstance(one, int) and not -(2**63) <= one < 2**64 for one in level):
            return "integers must fit 64 bits"
        if any(isinstance(one, str) and not _unicode(one) for one in level):
            return "not valid Unicode: a lone surrogate"
        level = [child for one in level for child in _children(one)]
    return f"nested deeper than {MAX_DEPTH}" if level else None


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list) else []


def _unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
