"""How every command reads what it is told."""

from __future__ import annotations

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit code 2, without the usage text."""
        self.exit(2, f"{self.prog}: {message}\n")
