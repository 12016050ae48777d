"""What a remote is: a place elsewhere that keeps the files of one bundle."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from models.bundle import MOST_JSON_BYTES
from models.disk import EXHAUSTED
from models.errors import Failed
from models.remotes.credentials import hidden


class RemoteError(Failed):
    """The remote can't be reached, refuses, or gives other bytes than it should; the message names it."""


class Remote(Protocol):
    """The files of one bundle elsewhere, by their names in the manifest. Each method may raise `RemoteError`."""

    def __str__(self) -> str:
        """The place as its user knows it, but for a password."""

    def files(self) -> set[str]:
        """What is there; nothing where there is no such place yet."""

    def read(self, path: str) -> bytes | None:
        """The content of a file, for small ones; None if it is not there.

        Raises:
            RemoteError: it has more than `MOST_JSON_BYTES`, which are not read.
        """

    def fetch(self, path: str, folder: Path) -> None:
        """The file as `folder/path`, whose parent is there."""

    def holds(self, path: str, file: Path) -> bool:
        """Whether the remote's file has the bytes of `file`, by a hash of what the remote holds now."""

    def begins(self, path: str, file: Path, /) -> bool:
        """Whether the remote's file is a beginning of `file`: one that was cut short on its way."""

    def put(self, folder: Path, paths: Sequence[str], *, removed: Collection[str]) -> None:
        """Store these files of `folder`, the last one last, and remove those others."""


@contextmanager
def told(remote: object, secret: Set[str] = frozenset(), *, fetching: bool = False) -> Iterator[None]:
    """Raise what goes wrong in the block as a `RemoteError`: one line that names `remote`, without what is `secret`.

    Of what is `fetching` the disk that gives out is ours, and told as it is.
    """
    try:
        yield
    except RemoteError:
        raise
    except (
        Exception
    ) as error:  # those of the hub's client, of each file system and of their transports: no common class
        if fetching and isinstance(error, OSError) and error.errno in EXHAUSTED:
            raise
        raise failure(remote, error, secret) from error


def too_large(remote: object, path: str) -> RemoteError:
    """The refusal of a file of JSON that would fill the memory."""
    return RemoteError(f"{remote}: {path}: has more than the {MOST_JSON_BYTES} bytes of a file of JSON")


def failure(remote: object, error: Exception, secret: Set[str] = frozenset()) -> RemoteError:
    """The first line that `error` says, behind the name of the place."""
    lines = [line.strip() for line in hidden(str(error), secret).splitlines() if line.strip()]
    return RemoteError(f"{remote}: {lines[0] if lines else type(error).__name__}")
