"""Safe reading of a `tokenizer.json` from an unknown source, with limits and clear errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

HIDING = re.compile(r"\(\?#|\(\?[a-wyzA-Z-]*x|\\g<")


class TokenizerFailure(RuntimeError):
    """The tokenizer failed on a text."""


def read(file: Path) -> FastTokenizer:
    """Read the tokenizer in `file`.

    Raises:
        ValueError: the file is not a tokenizer, or has a regular expression that may run for ever.
    """
    content = file.read_bytes()
    try:
        patterns = list(_patterns(json.loads(content)))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name}: not JSON ({error})") from None
    if slow := next((one for one in patterns if repeats_a_group(one)), None):
        raise ValueError(
            f"{file.name}: the regular expression {slow[:80]!r} repeats a group, which may take for ever on a text"
        )
    try:
        with giving_up():
            return FastTokenizer.from_buffer(content)
    except Exception as error:  # the library has no error class of its own
        raise ValueError(f"{file.name}: {error}") from None


@contextmanager
def giving_up() -> Iterator[None]:
    """Convert panics of the library to exceptions, because handlers of `Exception` don't catch panics.

    Raises:
        TokenizerFailure: the library panicked, as when a regular expression exceeds its step limit.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # no module of pyo3 exports the class
            raise
        raise TokenizerFailure(f"the tokenizer gave up: {error}") from None


def repeats_a_group(pattern: str) -> bool:
    """Return whether a group is repeated, which can make a search take exponential time.

    Tokenizers of known families repeat only characters and character classes. Comments, free spacing and group calls
    also count as repetitions, because they could hide one.
    """
    if HIDING.search(pattern):
        return True
    classes, i = 0, 0
    while i < len(pattern):
        match pattern[i]:
            case "\\":
                i += 1
            case "[":
                classes += 1
            case "]":
                classes = max(0, classes - 1)
            case ")" if not classes and pattern[i + 1 : i + 2] in {"*", "+", "{"}:
                return True
        i += 1
    return False


def _patterns(value: Any) -> Iterator[str]:
    ahead = [value]
    while ahead:
        one = ahead.pop()
        if isinstance(one, dict):
            if isinstance(pattern := one.get("Regex"), str):
                yield pattern
            ahead += one.values()
        elif isinstance(one, list):
            ahead += one
