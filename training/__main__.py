"""`python -m training`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from training import cli
from training.machine.memory import keep_pages


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command in a process that keeps its memory for the next step; see `training.cli.main`."""
    keep_pages()
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
