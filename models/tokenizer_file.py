"""A `tokenizer.json` that somebody else may have made: read within bounds, and never in the words of Rust."""

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
    """The tokenizer gave up on a text."""


def read(file: Path) -> FastTokenizer:
    """The tokenizer in `file`.

    Raises:
        ValueError: it is none, or has a regular expression that may take for ever.
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
    except Exception as error:  # the library has no class of its own
        raise ValueError(f"{file.name}: {error}") from None


@contextmanager
def giving_up() -> Iterator[None]:
    """Around calls of the library: its panics are no `Exception`, and would pass whatever handles those.

    Raises:
        TokenizerFailure: it panicked, as where a regular expression exceeds its steps.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # pyo3 has the class in no module
            raise
        raise TokenizerFailure(f"the tokenizer gave up: {error}") from None


def repeats_a_group(pattern: str) -> bool:
    """Whether a group is repeated, which is what makes a search take exponential time.

    No tokenizer of a family that we know has one: they repeat characters and classes of them. Comments, free spacing
    and calls of groups could hide one, and count as one.
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
