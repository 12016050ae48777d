"""JSON parser for request bodies. It parses valid bodies fast, and gives precise error messages for invalid bodies."""

from __future__ import annotations

import gc
import json
import math
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from serving.errors import Malformed, TooLarge

MAX_DEPTH = 32
TOO_DEEP = f"nested deeper than {MAX_DEPTH}"
MAX_CONTAINERS = 1_000_000
"""Maximum number of lists and objects in a body. A list takes two bytes in the body, and 100 to 200 bytes in memory."""
MAX_VALUES = 200_000
"""Maximum number of commas in a body, in addition to one comma for each allowed token id. Even values of unknown fields
are parsed, and parsing blocks other threads."""
LEAST, MOST = -(2**63), 2**64 - 1
"""Range of integers that can be stored. orjson reads and writes exactly this range."""
FITS = "from -2^63 to 2^64 - 1"
_SHOWN = 80
_CONTAINERS = (dict, list)
"""Types of JSON containers. `isinstance` is faster with a tuple than with a union."""
LARGE = 65_536
"""Body size in bytes from which the garbage collector is paused during parsing. Otherwise it would scan the new objects
again and again."""
SLICE = 1 << 17
"""Number of bytes that are scanned in one step. A step blocks other threads."""
_LONG_INTEGER = re.compile(rb"[0-9](?=[0-9]{18})")
"""Pattern of 19 digits in a row. Integers with fewer digits fit into 64 bits."""


def parse_json(body: bytes, tokens: int = 0) -> Any:
    """Parse `body`. It may contain up to `tokens` token ids in addition to `MAX_VALUES` other values.

    orjson refuses NaN, Infinity and lone surrogates, but Python's `json` accepts them. A body that orjson refuses is
    therefore parsed again by `json`, so that validation can name the field with the wrong value. A body is malformed
    only if both parsers refuse it.

    Raises:
        TooLarge: a body of at least `LARGE` bytes has more than `MAX_CONTAINERS` lists and objects, or more than
            `MAX_VALUES` + `tokens` values.
        Malformed: the body is not JSON, or is nested too deeply.
    """
    return _parsed(body, _read_fast, tokens)


def parse_exact(body: bytes, tokens: int = 0) -> Any:
    """Parse `body` like `parse_json`, but keep integers beyond 64 bits, which orjson converts to floats."""
    return _parsed(body, _read if _LONG_INTEGER.search(body) else _read_fast, tokens)


def check_containers(body: bytes, limit: int, of: str) -> None:
    """Raise `TooLarge` if a body has more than `limit` lists and objects, whose parsing would block the event loop.

    Brackets within strings are not counted. In the message, `of` names the body.
    """
    if _holds_more(body, b"[{", limit):
        raise TooLarge(f"more than {limit} lists and objects, the maximum of one {of}")


def _holds_more(body: bytes, marks_of: bytes, limit: int) -> bool:
    """Return whether the characters in `marks_of` together occur more than `limit` times in a JSON body.

    Characters within JSON strings are not counted.
    """
    if len(body) <= limit:
        return False
    others = bytes(set(range(256)) - {*b'"', *marks_of})
    found = start = within = 0
    while start < len(body) and found <= limit:
        part = body[start : start + SLICE]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:  # an escape sequence must not be split between two slices
            part = body[start : start + SLICE + 1]
        unescaped = part.replace(rb"\\", b"").replace(rb"\"", b"")
        marks = np.frombuffer(unescaped.translate(None, others), np.uint8)
        quotes = marks == ord('"')
        found += int(np.count_nonzero(~(quotes | (np.logical_xor.accumulate(quotes) ^ bool(within)))))
        within ^= int(np.count_nonzero(quotes)) % 2
        start += len(part)
    return found > limit


def _parsed(body: bytes, read: Callable[[bytes], Any], tokens: int) -> Any:
    if len(body) < LARGE:
        return read(body)
    check_containers(body, MAX_CONTAINERS, of="request")
    if _holds_more(body, b",", limit := MAX_VALUES + tokens):
        raise TooLarge(f"more than {limit} values, the maximum of one request")
    with _collector_paused:
        return read(body)


class _CollectorPause:
    """Context manager that pauses the garbage collector as long as any thread parses a body."""

    def __init__(self) -> None:
        self._lock, self._inside, self._enabled = threading.Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._enabled = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._enabled:
                gc.enable()


_collector_paused = _CollectorPause()


def _read_fast(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return _read(body)


def _read(body: bytes) -> Any:
    try:
        text = body.decode("utf-8-sig", "surrogatepass")  # json.loads of bytes would accept UTF-16, too
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise Malformed(f"not JSON: {error}") from None
        except ValueError:  # an integer has more digits than Python can convert
            return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise Malformed("not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise Malformed(f"not JSON: {error}") from None


def _integer(digits: str) -> int:
    """Parse an integer.

    If Python may refuse so many digits, return an integer just outside the storable range, which is rejected later.
    """
    if len(digits) < sys.int_info.str_digits_check_threshold:
        return int(digits)
    return LEAST - 1 if digits.startswith("-") else MOST + 1


def unwritable(value: Any) -> str | None:
    """Return the reason why `value` can't be stored as JSON without loss. If it can be stored, return None."""
    for depth, level in enumerate(levels(value)):
        if depth == MAX_DEPTH:
            return TOO_DEEP
        if wrong := no_json(level):
            return wrong
        if any(isinstance(one, int) and not LEAST <= one <= MOST for one in level):
            return f"integers must be {FITS}"
    return None


def misfit(value: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the dotted path of the first part of `value` that can't be stored, and the reason.

    If all parts can be stored, return None.
    """
    path, at, reason = list[str](), value, unwritable(value)
    while reason and not (path and reason == TOO_DEEP):
        inside = at.items() if isinstance(at, Mapping) else enumerate(at) if isinstance(at, list) else ()
        found = next(((key, one, wrong) for key, one in inside if (wrong := unwritable([key, one]))), None)
        if found is None:
            break
        key, at, reason = found
        path.append(str(key))
    return (".".join(path)[:_SHOWN], reason) if reason else None


def no_json(values: Sequence[Any]) -> str | None:
    """Return the reason why one of the values can't be written as JSON in UTF-8. If all can be written, return None."""
    kinds = set(map(type, values))
    if float in kinds and not all(map(math.isfinite, [one for one in values if isinstance(one, float)])):
        return "numbers must be finite"
    if str in kinds and not is_unicode("".join([one for one in values if isinstance(one, str)])):
        return "not valid Unicode: a lone surrogate"
    return None


def levels(value: Any) -> Iterator[list[Any]]:
    """Yield the values at each level of nesting, starting with `value`.

    This function is not recursive, because recursion would fail on deeply nested values.
    """
    level = [value]
    while level:
        yield level
        level = [child for one in level if isinstance(one, _CONTAINERS) for child in _children(one)]


def _children(value: Mapping[str, Any] | list[Any]) -> list[Any]:
    return value if isinstance(value, list) else [*value.keys(), *value.values()]


def is_unicode(text: str) -> bool:
    """Return whether UTF-8 can encode `text`. It can't encode lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
