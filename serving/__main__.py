"""`python -m serving`: see `serving.command`; its verbs `keys` and `openapi`: see the files named after them."""

from __future__ import annotations

import signal
import sys

from serving.builds import ClashError, refuse_clashes


def main() -> int:
    """The exit status; 2, after one line, for what the user has to mend."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # it waits until the server can reload, or end
    try:
        refuse_clashes()
    except ClashError as error:
        print(f"serving: {error}", file=sys.stderr)
        return 2
    if sys.argv[1:2] == ["keys"]:
        from serving.keys_command import keys

        return keys(sys.argv[2:])
    if sys.argv[1:2] == ["openapi"]:
        from serving.openapi_command import openapi

        return openapi(sys.argv[2:])
    from serving.command import serve  # not before: a clash may break the import itself

    return serve(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
