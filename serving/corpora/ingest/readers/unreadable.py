"""The error for files that can't be read, and the record type for a document that was read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

Kind = Literal["Malformed", "Invalid", "TooLarge", "Empty"]
"""Name of the class in `serving.errors` with which the server reports the error."""


class Unreadable(Exception):
    """Error for a file that can't be read. The message is one line with the reason."""

    def __init__(self, message: object, kind: Kind = "Malformed", place: str = "") -> None:
        self.kind, self.place = kind, place
        super().__init__(" ".join(str(message).split()))


class Record(NamedTuple):
    """A document as it was read, and its place in the file. If `field` can't be stored, `error` is the reason."""

    place: str
    value: dict[str, Any]
    field: str = ""
    error: str = ""


Records = Iterator[Record]


@contextmanager
def damage(called: str) -> Iterator[None]:
    """Convert all errors of a parser to `Unreadable`, except `MemoryError` and `RecursionError`.

    Damaged files cause more kinds of errors than parsers document. `called` is the name of the format.

    Raises:
        Unreadable: the file is damaged, or has another format.
    """
    try:
        yield
    except (Unreadable, MemoryError, RecursionError):
        raise
    except Exception as error:
        raise Unreadable(f"a damaged {called} file, or not {called}: {error or type(error).__name__}") from error


def check_begins(start: bytes, marks: tuple[bytes, ...], called: str) -> None:
    """Raise `Unreadable` unless `start`, the beginning of a file, begins with one of `marks`.

    `marks` are the possible first bytes of a format, and `called` is the name of this format.
    """
    if not start.startswith(marks):
        raise Unreadable(f"not {called}: it begins with {start[:8]!r}" if start else "the file is empty")
