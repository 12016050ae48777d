"""Strict parsing of JSON that other programs have written. All invalid input raises the same error class."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from models.errors import Refused


def loads(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: the text is not JSON, is too deeply nested, or has a string that is not Unicode or a number with too
            many digits; the message is one line.
    """
    try:
        value = json.loads(text)
        if "\\u" in text:  # Only an escape can put half a surrogate pair into valid UTF-8.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} in column {error.colno}") from error
    except UnicodeEncodeError as error:
        raise ValueError("contains half a surrogate pair, which is not Unicode") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except ValueError as error:  # Python limits the digits of a number.
        raise ValueError("a number has too many digits") from error
    return value


def row(line: str) -> dict[str, Any]:
    """Parse one line of a JSON Lines file.

    Raises:
        ValueError: the line is not a JSON object; the message is one line.
    """
    value = loads(line)
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    return value


def rows(lines: Iterable[str], file: object, refusal: type[Refused]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the position `file:line` and the JSON object of each line. Blank lines are skipped.

    Raises:
        Refused: a line is not a JSON object; the class of the error is `refusal`.
    """
    for number, line in enumerate(lines, start=1):
        where = f"{file}:{number}"
        if not line.strip():
            continue
        try:
            value = row(line)
        except ValueError as error:
            raise refusal(f"{where}: {error}") from error
        yield where, value
