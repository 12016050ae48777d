"""How every command reads what it is told."""

from __future__ import annotations

import argparse
from typing import NoReturn


def pooling(given: str) -> str:
    """Check the name of a pooling as an option."""
    from models.pooling import parts  # and so torch, which not every command needs

    try:
        parts(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return given


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit code 2, without the usage text."""
        self.exit(2, f"{self.prog}: {message}\n")
