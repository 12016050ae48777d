"""JSON that others wrote, where it must not stop what reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from models.errors import Refused


def loads(text: str) -> Any:
    """What `text` says.

    Raises:
        ValueError: it is not JSON, can't be read, or holds text that is not Unicode; the message is a line.
    """
    try:
        value = json.loads(text)
        if "\\u" in text:  # nothing else makes half a surrogate pair of what was UTF-8
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} in column {error.colno}") from error
    except UnicodeEncodeError as error:
        raise ValueError("holds half a surrogate pair, which is not Unicode") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except ValueError as error:  # Python reads no number of more digits than it has a limit for
        raise ValueError("a number has too many digits") from error
    return value


def rows(lines: Iterable[str], file: object, refusal: type[Refused]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place, `file:line`, and the object of each line of JSON lines that is not blank.

    Raises:
        Refused: a line is no object of JSON; of the class `refusal`.
    """
    for number, line in enumerate(lines, start=1):
        where = f"{file}:{number}"
        if not line.strip():
            continue
        try:
            row = loads(line)
        except ValueError as error:
            raise refusal(f"{where}: {error}") from error
        if not isinstance(row, dict):
            raise refusal(f"{where}: expected a JSON object")
        yield where, row
