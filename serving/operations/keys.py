"""API keys: a file with the name, hash, scopes and limits of each key. The keys themselves are not stored.

A key is 256 random bits, so its plain SHA-256 hash is safe. Slow hashes protect secrets that can be guessed, which
random keys can't. A slow hash would only help attackers to overload the server.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from models.bundle.disk import replacing

Scope = Literal["read", "write", "admin"]
"""Permissions of a key. `read`: embed and search. `write`: change corpora. `admin`: change what the server runs. No
scope includes another scope."""
Rate = Annotated[float, Field(ge=1e-6, allow_inf_nan=False)]
"""A rate per second. The minimum is about one in twelve days, because a smaller rate would overflow the clocks and is
probably meant as 0."""

PREFIX = "iso_"
"""Prefix of every API key, by which people and secret scanners recognise keys."""
FORMAT = 1


class KeysError(ValueError):
    """The key file can't be used. The message names the file."""


class UnreadableError(KeysError):
    """The key file can't be read, so the currently valid keys are unknown."""


class Key(BaseModel):
    """Permissions and limits of a key. If a limit is None, the server's default limit applies."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    scopes: tuple[Scope, ...] = Field(min_length=1)
    corpora: tuple[str, ...] | None = None
    """Shell patterns for the names of corpora that the key can access, such as `docs-*`. None gives access to all
    corpora."""
    requests_per_second: Rate | None = None
    tokens_per_second: Rate | None = None
    concurrency: PositiveInt | None = None
    threads: PositiveInt | None = None
    disk_bytes: PositiveInt | None = None
    unread_bytes: PositiveInt | None = None
    jobs: PositiveInt | None = None
    created: str = ""
    """Time of creation in ISO 8601, for people. The server does not use it."""

    def sees(self, corpus: str) -> bool:
        """Return whether the key has access to a corpus of this name, even if the corpus does not exist."""
        return self.corpora is None or any(fnmatchcase(corpus, pattern) for pattern in self.corpora)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: Literal[1]
    keys: tuple[Key, ...]


def new_secret() -> str:
    """Return a new random API key. The server stores only its hash."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """Return the SHA-256 hash of an API key, as key files store it."""
    return hashlib.sha256(secret.encode()).hexdigest()


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return the keys in a key file, in the order of the file.

    Raises:
        UnreadableError: the file can't be read.
        KeysError: the file is not a key file, or has two keys with the same name or hash.
    """
    try:
        keys = _File.model_validate_json(path.read_bytes()).keys
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise KeysError(f"{path}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from None
    by_name, by_hash = dict[str, Key](), dict[str, Key]()
    for key in keys:
        if by_name.setdefault(key.name, key) is not key:
            raise KeysError(f"{path}: two keys have the name {key.name!r}")
        if (same := by_hash.setdefault(key.sha256, key)) is not key:
            raise KeysError(f"{path}: {same.name!r} and {key.name!r} are the same key: their sha256 are equal")
    return keys


@contextmanager
def changed_keys(path: Path) -> Iterator[list[Key]]:
    """Yield the list of keys in a file, so that the `with` block can change the list.

    After the `with` block, a new file with the changed list replaces the file atomically. Only the owner can read the
    new file. If root changes the list, the owner of the file stays the same.

    Raises:
        KeysError: the file can't be read or written, or is not a key file. A missing file counts as a file without
            keys.
    """
    try:
        folder = os.open(path.resolve().parent, os.O_RDONLY)  # `_replace` follows a link, too.
    except OSError as error:
        raise KeysError(f"{path.parent}: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # otherwise a concurrent change could restore a revoked key
        keys = list(read_keys(path)) if path.exists() else []
        yield keys
        _replace(path, keys)
    finally:
        os.close(folder)


def _replace(path: Path, keys: Collection[Key]) -> None:
    content = {"format": FORMAT, "keys": [key.model_dump(exclude_none=True, exclude_defaults=True) for key in keys]}
    try:
        with replacing(path, 0o600) as new:  # Nobody else can read the file at any time.
            new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            if path.exists() and (before := path.stat()).st_uid != os.geteuid():
                os.chown(new, before.st_uid, before.st_gid)
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from None
