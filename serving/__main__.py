"""Entry point of `python -m serving`; the commands are in `serving.commands`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import distributions

from models.cli import command_line
from models.cli.ending import leave
from serving.operations import failpoints
from serving.options import CORPUS_VERBS, corpus_parser, openapi_parser

FAMILIES = ("onnxruntime", "faiss")


class ClashError(RuntimeError):
    """Two builds of one library are installed over each other. The message names the builds and the remedy."""


def refuse_clashes() -> None:
    """Refuse two installed builds of the same library.

    Such builds install the same module, so the later installation overwrites parts of the earlier one.

    Raises:
        ClashError: two builds of one family are installed.
    """
    names = {str(found.metadata["Name"]).lower() for found in distributions()}
    for family in FAMILIES:
        builds = sorted(name for name in names if name == family or name.startswith(f"{family}-"))
        if len(builds) > 1:
            raise ClashError(
                f"{' and '.join(builds)} are installed together and overwrite each other: "
                "`make clean setup EXTRAS=cpu` (or gpu) leaves one"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. A mistake of the user gives status 2 and one line on stderr."""
    given = sys.argv[1:] if arguments is None else arguments
    os.umask(0o077)  # override the caller's umask: no other user of this machine may read texts of tenants
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # SIGHUP waits until the server can reload or stop
    try:
        failpoints.arm(os.environ)
        refuse_clashes()
    except (ClashError, failpoints.FailpointsError) as error:
        print(f"isosphere: {error}", file=sys.stderr)
        return 2
    try:
        status = run(given)
        command_line.flush()
    except BrokenPipeError as error:
        if not command_line.has_gone(error):
            raise
        return command_line.GONE
    return status


def run(arguments: Sequence[str]) -> int:
    """Run one command; see `main`."""
    verb, rest = next(iter(arguments), ""), arguments[1:]
    if verb == "keys":
        from serving.commands.keys import keys

        return keys(rest)
    if verb == "openapi":
        openapi_parser().parse_args(rest)
        from serving.commands.serve import openapi

        return openapi()
    if verb in CORPUS_VERBS:
        given, rest = corpus_parser(verb).parse_known_args(rest)
        from serving.commands import corpus

        return corpus.run(verb, given, rest)
    from serving.settings import SettingsError, read_settings

    try:
        settings = read_settings(arguments)
    except SettingsError as error:
        print(f"isosphere: {error}", file=sys.stderr)
        return 2
    if settings.on == "ray":
        from serving.on_ray import deployment

        return deployment.serve(settings)
    # Imported here: help does not need the server, and clashing builds may break the import itself.
    from serving.commands.serve import serve

    return serve(settings)


if __name__ == "__main__":
    leave(main())
