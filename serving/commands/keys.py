"""Command `isosphere keys`: add, list, revoke."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from models.command_line import Parser
from serving.operations.keys import Key, KeysError, Scope, changed_keys, digest, new_secret, read_keys

VARIABLE = "ISOSPHERE_API_KEYS_FILE"
_LIMITS = "A limit that is not set is the server's default, such as --key-concurrency of `isosphere serve`."


def keys(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status. A mistake of the user gives status 2 and one line on stderr."""
    given = _parser().parse_args(arguments)
    path: Path | None = given.api_keys_file
    if path is None:
        print(f"serving keys: name the file: --api-keys-file FILE, or {VARIABLE}", file=sys.stderr)
        return 2
    try:
        {"add": _add, "list": _list, "revoke": _revoke}[given.verb](path, given)
    except KeysError as error:
        print(f"serving keys: {error}", file=sys.stderr)
        return 2
    return 0


def _add(path: Path, given: argparse.Namespace) -> None:
    corpora = None if given.corpora is None else [pattern.strip() for pattern in given.corpora.split(",")]
    if corpora and not all(corpora):
        raise KeysError("corpora: an empty pattern is no corpus; without --corpora the key may touch all")
    secret = new_secret()
    try:
        key = Key.model_validate(
            {
                "name": given.name,
                "sha256": digest(secret),
                "scopes": given.scopes.split(","),
                "corpora": corpora,
                "requests_per_second": given.requests_per_second,
                "tokens_per_second": given.tokens_per_second,
                "concurrency": given.concurrency,
                "threads": given.threads,
                "disk_bytes": given.disk_bytes,
                "unread_bytes": given.unread_bytes,
                "jobs": given.jobs,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise KeysError(f"{str(first['loc'][0]).replace('_', '-')}: {first['msg']}") from None
    with changed_keys(path) as keys:
        if any(one.name == key.name for one in keys):
            raise KeysError(f"{path} has a key {key.name!r}; revoke it first, or take another name")
        keys.append(key)
    print(f"The key {key.name!r}, shown this once; {path} holds its hash:", file=sys.stderr, flush=True)
    print(secret)


def _list(path: Path, given: argparse.Namespace) -> None:  # noqa: ARG001 - as the other verbs
    for key in read_keys(path):
        limits = {
            "requests/s": key.requests_per_second,
            "tokens/s": key.tokens_per_second,
            "at once": key.concurrency,
            "threads": key.threads,
            "bytes on disk": key.disk_bytes,
            "bytes unread": key.unread_bytes,
            "jobs": key.jobs,
        }
        said = [f"{value:{'g' if isinstance(value, float) else 'd'}} {what}" for what, value in limits.items() if value]
        corpora = "*" if key.corpora is None else ",".join(key.corpora) or "-"
        print(key.name, ",".join(key.scopes), corpora, ", ".join(said) or "-", key.created)


def _revoke(path: Path, given: argparse.Namespace) -> None:
    with changed_keys(path) as keys:
        kept = [key for key in keys if key.name != given.name]
        if len(kept) == len(keys):
            raise KeysError(f"{path} has no key {given.name!r}")
        keys[:] = kept


def _parser() -> argparse.ArgumentParser:
    variable = os.environ.get(VARIABLE)
    file = Parser(add_help=False)
    file.add_argument(
        "--api-keys-file",
        type=Path,
        default=Path(variable) if variable else None,
        help=f"file of API keys (default: the variable {VARIABLE})",
    )
    parser = Parser(prog="isosphere keys", description="Manage the file of API keys.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    add = verbs.add_parser(
        "add", parents=[file], help="create a key and print it; it is not shown again", epilog=_LIMITS
    )
    add.add_argument("name", help="name of the key in logs and errors")
    add.add_argument(
        "--scopes",
        default="read",
        help=f"scopes of the key, separated by commas: {','.join(get_args(Scope))} (default: read)",
    )
    add.add_argument(
        "--corpora",
        help="patterns of accessible corpora, separated by commas, such as 'docs-*,faq' (default: all)",
    )
    add.add_argument(
        "--requests-per-second",
        type=float,
        help="maximum requests per second",
    )
    add.add_argument("--tokens-per-second", type=float, help="maximum tokens per second")
    add.add_argument("--concurrency", type=int, help="maximum concurrent requests")
    add.add_argument("--threads", type=int, help="maximum search threads, and as many write threads")
    add.add_argument("--disk-bytes", type=int, help="maximum bytes on disk of all corpora that the key may access")
    add.add_argument("--unread-bytes", type=int, help="maximum bytes of unread answers")
    add.add_argument("--jobs", type=int, help="maximum waiting and running jobs")
    verbs.add_parser(
        "list", parents=[file], help="list the keys with their scopes, corpora and limits, without the secrets"
    )
    revoke = verbs.add_parser(
        "revoke", parents=[file], help="delete a key; a running server refuses it within a second"
    )
    revoke.add_argument("name")
    return parser
