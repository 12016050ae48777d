"""Parts that all commands share: the argument parser, quiet libraries, and a closed stdout, as after `| head`."""

from __future__ import annotations

import argparse
import os
import re
import select
import sys
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any, NoReturn

from models.errors import did_you_mean

INVALID_CHOICE = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<names>.*)\)")
UNRECOGNIZED = re.compile(r"unrecognized arguments: (?P<option>--[^\s=]+)")
GONE = 141
"""Exit status of a command whose stdout was closed. Shells report the same status for SIGPIPE."""


class _Paragraphs(argparse.HelpFormatter):
    """Formatter that keeps the lines of description and epilog, and wraps each of them."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(super(_Paragraphs, self)._fill_text(line, width, indent) for line in text.splitlines())


class Parser(argparse.ArgumentParser):
    """Argument parser that reports errors in one line, and suggests the nearest name for a misspelt name."""

    def __init__(self, *arguments: Any, passes_on: bool = False, **options: Any) -> None:
        """`passes_on` means that `parse_known_args` returns unknown arguments, for another parser."""
        super().__init__(*arguments, **{"formatter_class": _Paragraphs, **options})
        self._passes_on = passes_on

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown options first. The words after one would be taken for other arguments and be refused."""
        if not (self._passes_on or verbs(self)):
            words = takewhile(lambda word: word != "--", sys.argv[1:] if args is None else args)
            names = [word.partition("=")[0] for word in words if word.startswith("--") and " " not in word]
            if unknown := [
                name for name in names if not any(option.startswith(name) for option in self._option_string_actions)
            ]:
                self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2, without the usage text."""
        suggestion = ""
        if choice := INVALID_CHOICE.search(message):
            suggestion = did_you_mean(choice["word"], re.findall(r"[^\s',]+", choice["names"]))
        else:
            suggestion = near_option(message, self._option_string_actions)
        self.exit(2, f"{self.prog}: {message}{suggestion}\n")


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the option for the key of a running server."""
    parser.add_argument(
        "--key",
        type=_key,
        default=os.environ.get("ISOSPHERE_API_KEY"),
        help="API key of the server (default: $ISOSPHERE_API_KEY)",
    )


def _key(text: str) -> str:
    """Check the API key, because the error message of the HTTP client would contain the key."""
    if text.isascii() and text.isprintable() and text == text.strip():
        return text
    raise argparse.ArgumentTypeError("expected printable ASCII without blanks around it (or ISOSPHERE_API_KEY is not)")


def near_option(message: str, options: Iterable[str]) -> str:
    """Suggest an option if a message says that one is not recognized. Return an empty text otherwise."""
    found = UNRECOGNIZED.search(message)
    return did_you_mean(found["option"], options) if found else ""


def verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's commands by name; empty for a parser without commands."""
    return next(
        (dict(action.choices) for action in parser._actions if isinstance(action, argparse._SubParsersAction)), {}
    )


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers that have no commands: the parser, or those below it."""
    below = verbs(parser).values()
    for one in below:
        yield from leaves(one)
    if not below:
        yield parser


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
