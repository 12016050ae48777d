"""JSON in: fast where it is clean, precise where it is not."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

from serving.errors import Malformed

MAX_DEPTH = 32
_LONG_INTEGER = re.compile(rb"[0-9](?=[0-9]{18})")
"""19 digits: an integer of fewer fits 64 bits."""


def parse_json(body: bytes) -> Any:
    """The value of `body`.

    orjson refuses NaN, Infinity and lone surrogates outright. The standard library takes them, so that whoever
    validates the value can name the field; only what neither can read is malformed.

    Raises:
        Malformed: not JSON, or nested too deeply.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return _read(body)


def parse_exact(body: bytes) -> Any:
    """As `parse_json`, with integers of any size: orjson makes floats of those beyond 64 bits.

    Raises:
        Malformed: not JSON, or nested too deeply.
    """
    return _read(body) if _LONG_INTEGER.search(body) else parse_json(body)


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except RecursionError:
        raise Malformed("not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise Malformed(f"not JSON: {error}") from None


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
        if any(isinstance(one, str) and not is_unicode(one) for one in level):
            return "not valid Unicode: a lone surrogate"
        level = [child for one in level for child in _children(one)]
    return f"nested deeper than {MAX_DEPTH}" if level else None


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list) else []


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold it: a lone surrogate can't be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
