"""A remote folder on any file system that fsspec supports: this machine, S3, SSH or HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, cast

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from models.bundle.bundle import MOST_JSON_BYTES, sha256
from models.remotes.base import (
    RemoteError,
    as_remote_error,
    remote_error,
    secrets,
    too_large,
    without_secrets,
    without_user,
)

READ_AT_ONCE = 1 << 20
"""Number of bytes that are read at a time."""


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL or path, and the path inside this file system.

    Raises:
        ValueError: the scheme is unknown, or its driver is not installed; the message names the driver.
        RemoteError: the server does not answer, or refuses access.
    """
    name, secret = without_user(url), secrets(url)
    try:
        fs, root = url_to_fs(url)
    except ImportError as error:
        raise ValueError(f"{name}: {without_secrets(str(error), secret)}, with pip in this environment") from error
    except ValueError as error:
        raise ValueError(f"{name}: {without_secrets(str(error), secret)}") from error
    except Exception as error:  # Exceptions of file systems have no common base class.
        raise remote_error(name, error, secret) from error
    return fs, root


class Filesystem:
    """A remote folder, given by its URL or path."""

    def __init__(self, url: str) -> None:
        """Parse the URL. No file is opened yet, but some file systems open a connection.

        Raises:
            ValueError: the scheme is unknown, or its driver is not installed; the message names the driver.
            RemoteError: the server does not answer, or refuses access.
        """
        self._name = without_user(url)
        self._remote_errors = partial(as_remote_error, self, secrets(url))
        self._fs, root = open_filesystem(url)
        self._root: str = root.rstrip("/")

    def __str__(self) -> str:
        return self._name

    def files(self) -> set[str]:
        with self._remote_errors():
            self._fs.invalidate_cache()
            return {path[len(self._root) :].strip("/") or "." for path in self._fs.find(self._root)}

    def read(self, path: str) -> bytes | None:
        with self._remote_errors():
            try:
                with self._fs.open(self._at(path), "rb") as stream:
                    content = cast(bytes, stream.read(MOST_JSON_BYTES + 1))
            except (FileNotFoundError, NotADirectoryError):
                return None
            if len(content) > MOST_JSON_BYTES:
                raise too_large(self, path)
            return content

    def fetch(self, path: str, folder: Path) -> None:
        """Download a file. If the remote is a folder on this machine, links are refused."""
        with self._remote_errors(fetching=True):
            self._refuse_link(path)
            self._fs.get_file(self._at(path), str(folder / path))

    def holds(self, path: str, file: Path) -> bool:
        """Return whether the remote file equals `file`, by size and SHA-256.

        The whole remote file is read, because fsspec has no hash that works for all file systems.
        """
        with self._remote_errors():
            self._refuse_link(path)
            if self._fs.info(self._at(path))["size"] != file.stat().st_size:
                return False
            with self._fs.open(self._at(path), "rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest() == sha256(file)

    def begins(self, path: str, file: Path, /) -> bool:
        with self._remote_errors(), self._fs.open(self._at(path), "rb") as theirs, file.open("rb") as ours:
            while part := theirs.read(READ_AT_ONCE):
                if part != ours.read(len(part)):
                    return False
        return True

    def put(self, folder: Path, paths: Sequence[str], *, removed: Collection[str]) -> None:
        """Delete the files `removed`, then upload the files `paths`.

        If the remote is a folder on this machine, other bundles may share its files by hard links. The caller must
        therefore include in `removed` every file that gets new content. Without the deletion, the upload would also
        change the files of the other bundles.
        """
        with self._remote_errors():
            self._refuse_link("")
            for path in removed:
                self._fs.rm_file(self._at(path))
            for path in paths:
                self._fs.makedirs(str(PurePosixPath(self._at(path)).parent), exist_ok=True)
                self._fs.put_file(str(folder / path), self._at(path))
            self._fs.invalidate_cache()

    def _refuse_link(self, path: str) -> None:
        """Raise an error if a path is a link or is below a link, because links may point outside the folder."""
        if isinstance(self._fs, LocalFileSystem):
            for part in (path, *map(str, PurePosixPath(path).parents[:-1])):
                if Path(self._root, part).is_symlink():
                    raise RemoteError(
                        f"{self}: {part or self._root}: is a link; a bundle may contain only regular files"
                    )

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"
