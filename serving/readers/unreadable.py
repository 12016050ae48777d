"""Why a file can't be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

Kind = Literal["Malformed", "Invalid", "TooLarge", "Empty"]
"""Name of the server's error."""


class Unreadable(Exception):
    """The file can't be read. The message is one line, and says why."""

    def __init__(self, message: object, kind: Kind = "Malformed", place: str = "") -> None:
        self.kind, self.place = kind, place
        super().__init__(" ".join(str(message).split()))


class Record(NamedTuple):
    """A raw document, and its place in the file."""

    place: str
    value: dict[str, Any]


Records = Iterator[Record]


@contextmanager
def damage(called: str) -> Iterator[None]:
    """Translate any error of a parser. A parser fails at a damaged file in more ways than its documentation names.

    Raises:
        Unreadable: the file is damaged.
    """
    try:
        yield
    except (Unreadable, MemoryError, RecursionError):
        raise
    except Exception as error:
        raise Unreadable(f"a damaged {called} file, or not {called}: {error or type(error).__name__}") from error


def check_begins(start: bytes, marks: tuple[bytes, ...], called: str) -> None:
    """Refuse a file that is not what its name says.

    Raises:
        Unreadable: `start` begins with none of the `marks`.
    """
    if not start.startswith(marks):
        raise Unreadable(f"not {called}: it begins with {start[:8]!r}" if start else "the file is empty")
