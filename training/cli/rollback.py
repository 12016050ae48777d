"""`rollback`: serve the bundle from before the last promotion."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from training.cli.promote import DEFAULT, TOLD
from training.promotion import history
from training.promotion.place import open_place


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument(
        "--default", type=Path, default=DEFAULT, metavar="PATH", help=f"path of the served bundle (default: {DEFAULT})"
    )
    command.set_defaults(command=rollback)


def rollback(options: argparse.Namespace) -> int:
    """Roll back, and print the bundle that is served now."""
    place = open_place(options.default)
    line = history.rollback(place, stream=sys.stderr)
    print(f"{place.default}: back to {line['candidate']['name']} ({place.copies / line['copy']}); {TOLD}")
    return 0
