"""Parts that all commands share: the argument parser, quiet libraries, and a closed stdout, as after `| head`."""

from __future__ import annotations

import argparse
import os
import re
import select
import sys
from typing import NoReturn

from models.errors import did_you_mean

INVALID_CHOICE = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<names>.*)\)")
UNRECOGNIZED = re.compile(r"unrecognized arguments: (?P<option>--[^\s=]+)")
GONE = 141
"""Exit status of a command whose stdout was closed. Shells report the same status for SIGPIPE."""


class Parser(argparse.ArgumentParser):
    """Argument parser that reports errors in one line, and suggests the nearest name for a misspelt name."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2, without the usage text."""
        suggestion = ""
        if choice := INVALID_CHOICE.search(message):
            suggestion = did_you_mean(choice["word"], re.findall(r"[^\s',]+", choice["names"]))
        elif option := UNRECOGNIZED.search(message):
            suggestion = did_you_mean(option["option"], self._option_string_actions)
        self.exit(2, f"{self.prog}: {message}{suggestion}\n")


def quieten() -> None:
    """Turn off progress bars of transformers and the hub, and reports on weights that pooling does not need.

    This sets environment variables, because importing the libraries takes seconds, and not every command imports them.
    The libraries read the variables when they are imported, and child processes inherit them. Libraries that are
    already imported are configured directly.
    """
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if hub := sys.modules.get("huggingface_hub.utils"):
        hub.disable_progress_bars()
    if logging := sys.modules.get("transformers.utils.logging"):
        logging.disable_progress_bar()
        logging.set_verbosity_error()


def flush() -> None:
    """Flush stdout, if the process has one.

    Raises:
        BrokenPipeError: the reader has closed stdout.
    """
    if sys.stdout is not None:
        sys.stdout.flush()


def has_gone(error: OSError) -> bool:
    """Return whether `error` was raised because stdout is closed, and not because of a different pipe or connection.

    If stdout is closed, redirect it to the null device. Otherwise Python would raise the same error again at exit.
    """
    if not isinstance(error, BrokenPipeError):
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not poll.poll(0):  # nothing to report, so the other end of the pipe is open
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return True
