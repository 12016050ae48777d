"""Argument parser of all commands."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from models.errors import did_you_mean

INVALID_CHOICE = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<names>.*)\)")
UNRECOGNIZED = re.compile(r"unrecognized arguments: (?P<option>--[^\s=]+)")


class Parser(argparse.ArgumentParser):
    """Parser that reports errors in one line, and suggests the nearest name for a misspelt one."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2, without the usage text."""
        asks = ""
        if choice := INVALID_CHOICE.search(message):
            asks = did_you_mean(choice["word"], re.findall(r"[^\s',]+", choice["names"]))
        elif option := UNRECOGNIZED.search(message):
            asks = did_you_mean(option["option"], self._option_string_actions)
        self.exit(2, f"{self.prog}: {message}{asks}\n")
