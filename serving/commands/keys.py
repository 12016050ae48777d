"""Command `isosphere keys`: add, list and revoke API keys."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from serving.commands.options import KEYS_FILE, keys_parser
from serving.operations.keys import Key, KeysError, changed_keys, digest, new_secret, read_keys

LIMITS = {
    "requests_per_second": "requests/s",
    "tokens_per_second": "tokens/s",
    "concurrency": "at once",
    "threads": "threads",
    "disk_bytes": "bytes on disk",
    "unread_bytes": "bytes unread",
    "jobs": "jobs",
}
"""Limits of a key, each with the unit that `isosphere keys list` prints."""


def keys(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status.

    After a mistake of the user, the status is 2, and stderr has one line about the mistake.
    """
    given = keys_parser().parse_args(arguments)
    path: Path | None = given.api_keys_file
    try:
        if path is None:
            raise KeysError(f"give the file of API keys, by --api-keys-file FILE or by the variable {KEYS_FILE}")
        {"add": _add, "list": _list, "revoke": _revoke}[given.verb](path, given)
    except KeysError as error:
        print(f"isosphere keys: {error}", file=sys.stderr)
        return 2
    return 0


def _add(path: Path, given: argparse.Namespace) -> None:
    corpora = None if given.corpora is None else [pattern.strip() for pattern in given.corpora.split(",")]
    if corpora and not all(corpora):
        raise KeysError("corpora: a pattern is empty; leave out --corpora to give the key access to all corpora")
    secret = new_secret()
    try:
        key = Key.model_validate(
            {
                "name": given.name,
                "sha256": digest(secret),
                "scopes": given.scopes.split(","),
                "corpora": corpora,
                **{limit: getattr(given, limit) for limit in LIMITS},
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise KeysError(f"{str(first['loc'][0]).replace('_', '-')}: {first['msg']}") from None
    with changed_keys(path) as keys:
        if any(one.name == key.name for one in keys):
            raise KeysError(f"{path} already has a key {key.name!r}: revoke it first, or choose another name")
        keys.append(key)
    print(f"The key {key.name!r} is not shown again. {path} contains only its hash:", file=sys.stderr, flush=True)
    print(secret)


def _list(path: Path, given: argparse.Namespace) -> None:  # noqa: ARG001 - as the other verbs
    for key in read_keys(path):
        limits = [(getattr(key, limit), what) for limit, what in LIMITS.items()]
        said = [f"{value:{'g' if isinstance(value, float) else 'd'}} {what}" for value, what in limits if value]
        corpora = "*" if key.corpora is None else ",".join(key.corpora) or "-"
        print(key.name, ",".join(key.scopes), corpora, ", ".join(said) or "-", key.created)


def _revoke(path: Path, given: argparse.Namespace) -> None:
    with changed_keys(path) as keys:
        kept = [key for key in keys if key.name != given.name]
        if len(kept) == len(keys):
            raise KeysError(f"{path} has no key {given.name!r}")
        keys[:] = kept
