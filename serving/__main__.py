"""`python -m serving`: see `serving.commands`."""

from __future__ import annotations

import os
import signal
import sys

from models import reader
from serving import failpoints
from serving.builds import ClashError, refuse_clashes


def main() -> int:
    """The exit status; 2, after one line, for what the user has to mend."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # it waits until the server can reload, or end
    try:
        failpoints.arm(os.environ)
        refuse_clashes()
    except (ClashError, failpoints.FailpointsError) as error:
        print(f"serving: {error}", file=sys.stderr)
        return 2
    try:
        status = _run()
        reader.flush()
    except BrokenPipeError as error:
        if not reader.has_gone(error):
            raise
        return reader.GONE
    return status


def _run() -> int:
    if sys.argv[1:2] == ["keys"]:
        from serving.commands.keys import keys

        return keys(sys.argv[2:])
    if sys.argv[1:2] == ["openapi"]:
        from serving.commands.openapi import openapi

        return openapi(sys.argv[2:])
    if sys.argv[1:2] and sys.argv[1] in ("ingest", "search", "export", "verify"):
        from serving.commands.corpus import run
        from serving.ending import ended

        return ended(run(sys.argv[1], sys.argv[2:]))
    from serving.commands.serve import serve  # not before: a clash may break the import itself
    from serving.ending import ended

    return ended(serve(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
