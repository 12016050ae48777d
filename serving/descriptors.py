"""How many files and connections this process may have open at once."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_limit() -> None:
    """To what the system allows at most. Most begin with 1,024; a client takes one, the corpora some hundreds."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # where "at most" is endless the kernel's own limit may be less
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
