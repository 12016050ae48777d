"""Entry point of `python -m serving`. The commands are in `serving.commands`."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from models.cli import command_line
from models.cli.ending import leave
from serving.commands.options import CORPUS_VERBS, corpus_parser, openapi_parser
from serving.operations import failpoints

if TYPE_CHECKING:
    from serving.settings import Settings

FAMILIES = ("onnxruntime", "faiss")
INTERRUPTED = 130
"""Exit status after Ctrl-C."""


class ClashError(RuntimeError):
    """Two builds of the same library are installed together.

    The message names the builds and the command that repairs the installation.
    """


def refuse_clashes() -> None:
    """Raise `ClashError` if two builds of the same library are installed.

    All builds of a library install the same module, so the later installation overwrites files of the earlier one.
    """
    # The names of the folders tell the names of the builds. `importlib.metadata` would read a file of each package.
    folders = [found for place in sys.path for found in Path(place).glob("*-info") if any(found.glob("*"))]
    names = {re.sub(r"[-_.]+", "-", found.name.partition("-")[0]).lower() for found in folders}
    for family in FAMILIES:
        builds = sorted(name for name in names if name == family or name.startswith(f"{family}-"))
        if len(builds) > 1:
            raise ClashError(
                f"{' and '.join(builds)} are installed together and overwrite each other: "
                "`make clean setup EXTRAS=cpu` (or gpu) leaves one"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    After a mistake of the user, the status is 2, and stderr has one line about the mistake.
    """
    given = sys.argv[1:] if arguments is None else arguments
    os.umask(0o077)  # ignore the caller's umask: other users of this machine must not read the tenants' texts
    if next(iter(given), "") not in ("keys", "openapi", *CORPUS_VERBS):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # block SIGHUP until the server can reload or stop
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
    """Run one command. `main` describes the exit status."""
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
        from serving.commands.on_ray import deployment

        return deployment.serve(settings)
    return _serve(settings)


def _serve(settings: Settings) -> int:
    try:
        # Import the server only here. The help needs no server, and clashing builds can break the import.
        gc.disable()  # `serve` enables it. Imports leave no garbage, but collections would take a tenth of a second.
        from serving.commands.loading import begin

        opening = begin(settings)
        from serving.commands.serve import serve  # takes as long as the encoder takes to load, so both happen at once

        return serve(opening)
    except KeyboardInterrupt:
        # The caller ends the process by `leave`. Python's own end would disturb the load in the background.
        return INTERRUPTED
    finally:
        gc.enable()


if __name__ == "__main__":
    leave(main())
