"""Entry point of `python -m serving`; the commands are in `serving.commands`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from models import reader
from serving import failpoints
from serving.builds import ClashError, refuse_clashes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 2, after one line on stderr, for a mistake of the user."""
    given = sys.argv[1:] if arguments is None else arguments
    os.umask(0o077)  # override the caller's umask: no other user of this machine may read texts of tenants
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # SIGHUP waits until the server can reload or stop
    try:
        failpoints.arm(os.environ)
        refuse_clashes()
    except (ClashError, failpoints.FailpointsError) as error:
        print(f"serving: {error}", file=sys.stderr)
        return 2
    try:
        status = _run(given)
        reader.flush()
    except BrokenPipeError as error:
        if not reader.has_gone(error):
            raise
        return reader.GONE
    return status


def _run(arguments: Sequence[str]) -> int:
    verb, rest = next(iter(arguments), ""), arguments[1:]
    if verb == "keys":
        from serving.commands.keys import keys

        return keys(rest)
    if verb == "openapi":
        from serving.commands.openapi import openapi

        return openapi(rest)
    if verb in ("ingest", "search", "export", "verify"):
        from serving.commands.corpus import run
        from serving.ending import ended

        return ended(run(verb, rest))
    from serving.commands.serve import serve  # imported here, since clashing builds may break the import itself
    from serving.ending import ended

    return ended(serve(arguments))


if __name__ == "__main__":
    sys.exit(main())
