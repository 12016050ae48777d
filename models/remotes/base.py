"""Interface of a remote, which stores the files of one bundle, and its errors.

Error messages never contain the user or the password of a URL.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from models.bundle.bundle import MOST_JSON_BYTES
from models.bundle.disk import EXHAUSTED
from models.errors import Failed

USER = re.compile(r"(?<=://)(?:[^/:\[]*:(?!:|\d*/).*|[^/]*)@")
"""Pattern of the user and password in a URL, up to the last `@`.

A slash in a password should be written `%2F`. The pattern also accepts a plain slash, because users often paste S3 keys
unchanged.
"""
USER_IN_TEXT = re.compile(r"(?<=://)[^\s/]*@")


class RemoteError(Failed):
    """The remote can't be reached, refuses access, or returns wrong bytes. The message names the remote."""


class Remote(Protocol):
    """Protocol for access to the files of one remote bundle, by their names in the manifest.

    Each method may raise `RemoteError`.
    """

    def __str__(self) -> str:
        """Return the place of the remote for messages, without the user and password of a URL."""

    def files(self) -> set[str]:
        """Return the names of all files, or an empty set if the remote does not exist."""

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file, or None if the file does not exist.

        Raises:
            RemoteError: the file has more than `MOST_JSON_BYTES`.
        """

    def fetch(self, path: str, folder: Path) -> None:
        """Download a file to `folder/path`. The parent folder of this path must exist."""

    def holds(self, path: str, file: Path) -> bool:
        """Return whether the remote file has the same content as `file`, by comparing hashes."""

    def begins(self, path: str, file: Path, /) -> bool:
        """Return whether the remote file is the beginning of the local `file`, as after an interrupted upload."""

    def put(self, folder: Path, paths: Sequence[str], *, removed: Collection[str]) -> None:
        """Upload the files `paths` of `folder` in order, and delete the files `removed`.

        A file that is in both `paths` and `removed` gets its new content.
        """


@contextmanager
def as_remote_error(remote: object, secret: Set[str] = frozenset(), *, fetching: bool = False) -> Iterator[None]:
    """Convert an error that the `with` block raises to a `RemoteError`.

    The message is one line that names `remote` and hides every `secret`. If `fetching` is true and the local disk is
    full or fails, the `OSError` is raised unchanged.
    """
    try:
        yield
    except RemoteError:
        raise
    # Errors of the hub's client, of file systems and of transports have no common base class.
    except Exception as error:
        if fetching and isinstance(error, OSError) and error.errno in EXHAUSTED:
            raise
        raise remote_error(remote, error, secret) from error


def too_large(remote: object, path: str) -> RemoteError:
    return RemoteError(f"{remote}: {path}: has more than {MOST_JSON_BYTES} bytes, the maximum for a JSON file")


def remote_error(remote: object, error: Exception, secret: Set[str] = frozenset()) -> RemoteError:
    lines = [line.strip() for line in without_secrets(str(error), secret).splitlines() if line.strip()]
    return RemoteError(f"{remote}: {lines[0] if lines else type(error).__name__}")


def without_user(url: str) -> str:
    return USER.sub("", url)


def secrets(url: str) -> Set[str]:
    """Return the texts that messages must not contain: a URL's `user:password` and its password.

    If the URL has a user without a password, the user is the only text.

    Each text is returned both as it is written and percent-decoded. If the password contains `/`, `?`, `#` or `@`, the
    pieces between these characters are returned, too. A library may take one piece for the whole password, and name it
    in a message.
    """
    users = {user.removesuffix("@") for user in USER.findall(url)}
    passwords = {user.partition(":")[2] for user in users}
    whole = users | passwords
    return {*whole, *map(unquote, whole), *(piece for one in passwords for piece in re.split("[/?#@]", one))} - {""}


def without_secrets(text: str, secret: Set[str]) -> str:
    """Replace each secret that occurs as a whole word by `***`, and remove users and passwords from all URLs."""
    for one in sorted(secret, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(one)}(?!\w)", "***", text)
    return USER_IN_TEXT.sub("", text)
