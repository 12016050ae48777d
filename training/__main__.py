"""`python -m training`: the entry point of the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from training import cli
from training.machine import memory


def main(arguments: Sequence[str] | None = None) -> int:
    memory.reuse_memory()
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
