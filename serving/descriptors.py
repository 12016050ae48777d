"""The limit on files and connections that this process may have open at once."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_limit() -> None:
    """Raise the limit to the system's maximum.

    The usual default is 1,024. Each client takes one, and the corpora take some hundreds.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # where the maximum is unlimited, the kernel's own limit may be lower
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
