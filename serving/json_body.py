"""JSON in: fast where it is clean, precise where it is not."""

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
"""Lists and objects of a body: each takes two bytes there, and a hundred or two in memory."""
MAX_VALUES = 200_000
"""Commas of a body beside those of as many token ids as it may have: what nobody reads is parsed, too, and no other
thread runs meanwhile."""
LEAST, MOST = -(2**63), 2**64 - 1
"""Integers that are kept: what orjson reads and writes."""
FITS = "from -2^63 to 2^64 - 1"
_SHOWN = 80
LARGE = 65_536
"""Bytes from which the garbage collector is paused: it would look through all that is being made, again and again."""
SLICE = 1 << 17
"""Bytes of a body that are looked at in one step, during which no other thread runs."""
_LONG_INTEGER = re.compile(rb"[0-9](?=[0-9]{18})")
"""19 digits: an integer of fewer fits 64 bits."""


def parse_json(body: bytes, tokens: int = 0) -> Any:
    """The value of `body`, which may have so many token ids.

    orjson refuses NaN, Infinity and lone surrogates outright. The standard library takes them, so that whoever
    validates the value can name the field; only what neither can read is malformed.

    Raises:
        TooLarge: it holds more than `MAX_CONTAINERS` lists and objects, or too many values.
        Malformed: not JSON, or nested too deeply.
    """
    return _parsed(body, _read_fast, tokens)


def parse_exact(body: bytes) -> Any:
    """As `parse_json`, with integers of any size: orjson makes floats of those beyond 64 bits.

    Raises:
        TooLarge, Malformed: as `parse_json`.
    """
    return _parsed(body, _read if _LONG_INTEGER.search(body) else _read_fast)


def check_containers(body: bytes, limit: int | None = None, of: str = "request") -> None:
    """Refuse more lists and objects than the event loop should spend its time on; brackets within strings are none.

    Raises:
        TooLarge: more than `limit`, which is `MAX_CONTAINERS` unless it is given.
    """
    limit = MAX_CONTAINERS if limit is None else limit
    if _holds_more(body, b"[{", limit):
        raise TooLarge(f"more than {limit} lists and objects, which one {of} may hold")


def check_values(body: bytes, tokens: int = 0) -> None:
    """Refuse more values than a request needs that has so many token ids.

    Raises:
        TooLarge: it has more.
    """
    limit = MAX_VALUES + tokens
    if _holds_more(body, b",", limit):
        raise TooLarge(f"more than {limit} values, which one request may hold")


def _holds_more(body: bytes, marks_of: bytes, limit: int) -> bool:
    """Whether more of these characters stand in JSON outside of its strings."""
    if len(body) <= limit:
        return False
    others = bytes(set(range(256)) - {*b'"', *marks_of})
    found = start = within = 0
    while start < len(body) and found <= limit:
        end = start + SLICE
        while body[end - 1 : end] == b"\\":  # its escape ends with the next slice
            end += 1
        unescaped = body[start:end].replace(rb"\\", b"").replace(rb"\"", b"")
        marks = np.frombuffer(unescaped.translate(None, others), np.uint8)
        quotes = marks == ord('"')
        found += int(np.count_nonzero(~(quotes | (np.logical_xor.accumulate(quotes) ^ bool(within)))))
        within ^= int(np.count_nonzero(quotes)) % 2
        start = end
    return found > limit


def _parsed(body: bytes, read: Callable[[bytes], Any], tokens: int = 0) -> Any:
    if len(body) < LARGE:
        return read(body)
    check_containers(body)
    check_values(body, tokens)
    with _collector_paused:
        return read(body)


class _CollectorPause:
    """Around the reading of a body: the garbage collector is paused until the last of the threads that read is done."""

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
        text = body.decode("utf-8-sig", "surrogatepass")  # bytes it would take in UTF-16, too
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise Malformed(f"not JSON: {error}") from None
        except ValueError:  # an integer of more digits than Python reads
            return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise Malformed("not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise Malformed(f"not JSON: {error}") from None


def _integer(digits: str) -> int:
    """One that Python does not read, for its length, is as any other that does not fit."""
    if len(digits) < sys.int_info.str_digits_check_threshold:
        return int(digits)
    return LEAST - 1 if digits.startswith("-") else MOST + 1


def unwritable(value: Any) -> str | None:
    """Why `value` can't be stored and given back as the same JSON, or None."""
    for depth, level in enumerate(levels(value)):
        if depth == MAX_DEPTH:
            return TOO_DEEP
        if wrong := no_json(level):
            return wrong
        if any(isinstance(one, int) and not LEAST <= one <= MOST for one in level):
            return f"integers must be {FITS}"
    return None


def misfit(value: Mapping[str, Any]) -> tuple[str, str] | None:
    """What of `value` can't be stored, as a dotted path, and why; None if all of it can."""
    reason = unwritable(value)
    if reason is None:
        return None
    path, at = list[str](), value
    while True:
        inside = at.items() if isinstance(at, Mapping) else enumerate(at) if isinstance(at, list) else ()
        found = next(((key, one) for key, one in inside if unwritable([key, one])), None)
        if found is None or (path and reason == TOO_DEEP):
            return ".".join(path)[:_SHOWN], reason
        path.append(str(found[0]))
        at = found[1]


def no_json(values: Sequence[Any]) -> str | None:
    """Why one of them is nothing that JSON in UTF-8 can say, whatever the parser took, or None."""
    if any(isinstance(one, float) and not math.isfinite(one) for one in values):
        return "numbers must be finite"
    if any(isinstance(one, str) and not is_unicode(one) for one in values):
        return "not valid Unicode: a lone surrogate"
    return None


def levels(value: Any) -> Iterator[list[Any]]:
    """The value, what it holds, what that holds, and so on: what calls itself for each level would fail somewhere."""
    level = [value]
    while level:
        yield level
        level = [child for one in level for child in _children(one)]


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
