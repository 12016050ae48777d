"""Code that all commands share: the argument parser, quieter libraries, and the handling of a closed stdout."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import select
import sys
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from models.errors import did_you_mean

INVALID_CHOICE = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<names>.*)\)")
UNRECOGNIZED = re.compile(r"unrecognized arguments: (?P<option>--[^\s=]+)")
GONE = 141
"""Exit status of a command whose stdout was closed, as in `command | head`. Shells report 141 for SIGPIPE."""


class _Paragraphs(argparse.HelpFormatter):
    """Help formatter that wraps each line of the description and the epilog separately."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(super(_Paragraphs, self)._fill_text(line, width, indent) for line in text.splitlines())


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line, and suggests the most similar name for a misspelt name."""

    def __init__(self, *arguments: Any, passes_on: bool = False, **options: Any) -> None:
        """Create the parser.

        With `passes_on`, `parse_known_args` returns unknown arguments, which another parser then reads.
        """
        super().__init__(*arguments, **{"formatter_class": _Paragraphs, **options})
        self._passes_on = passes_on

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Expand `~` in values such as `--out=~/x`, as shells do after a space, refuse unknown options, and parse.

        If an unknown option were not refused first, the words after it would be parsed as other arguments and cause a
        misleading error. A parser with subcommands or with `passes_on` does not refuse unknown options, because
        another parser reads them.
        """
        args = [_expanded(word) for word in (sys.argv[1:] if args is None else args)]
        if not (self._passes_on or verbs(self)):
            words = takewhile(lambda word: word != "--", args)
            names = [word.partition("=")[0] for word in words if word.startswith("--") and " " not in word]
            if unknown := [
                name for name in names if not any(option.startswith(name) for option in self._option_string_actions)
            ]:
                self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        suggestion = ""
        if choice := INVALID_CHOICE.search(message):
            suggestion = did_you_mean(choice["word"], re.findall(r"[^\s',]+", choice["names"]))
        else:
            suggestion = near_option(message, self._option_string_actions)
        self.exit(2, f"{self.prog}: {message}{suggestion}\n")


def _expanded(word: str) -> str:
    option, _, value = word.partition("=")
    return f"{option}={Path(value).expanduser()}" if option.startswith("--") and value.startswith("~/") else word


def add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key",
        type=_key,
        default=os.environ.get("ISOSPHERE_API_KEY"),
        help="API key of the server (default: $ISOSPHERE_API_KEY)",
    )


def _key(text: str) -> str:
    """Return a valid API key, or raise an error that does not contain the key.

    The HTTP client's own error for an invalid key would show the key.
    """
    if text.isascii() and text.isprintable() and text == text.strip():
        return text
    raise argparse.ArgumentTypeError(
        "expected printable ASCII without surrounding blanks, here or in ISOSPHERE_API_KEY"
    )


def near_option(message: str, options: Iterable[str]) -> str:
    """Return a suggestion with the name most similar to the unrecognized option that `message` names.

    If `message` is not about such an option, or no name in `options` is similar, return an empty text.
    """
    found = UNRECOGNIZED.search(message)
    names = {option.lstrip("-"): option for option in options}  # equal dashes would make all options similar
    near = difflib.get_close_matches(found["option"].lstrip("-"), names, n=1) if found else []
    return f"; did you mean {names[near[0]]}?" if near else ""


def verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's subcommands, by the names of the subcommands. Without subcommands, return {}."""
    return next(
        (dict(action.choices) for action in parser._actions if isinstance(action, argparse._SubParsersAction)), {}
    )


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield all parsers without subcommands in the tree of subcommands below `parser`.

    If `parser` has no subcommands, yield `parser` itself.
    """
    below = verbs(parser).values()
    for one in below:
        yield from leaves(one)
    if not below:
        yield parser


def quieten() -> None:
    """Disable progress bars of transformers and the hub, and transformers' warnings, for example about unused weights.

    The function sets environment variables. The libraries read these variables when they are imported, and child
    processes inherit them. The function does not import the libraries, because the import takes seconds and not every
    command needs them. Libraries that are already imported are configured directly.
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
    """Return whether `error` was raised because stdout is closed, and not because of another pipe or connection.

    If stdout is closed, redirect it to the null device, so that Python does not raise the same error again at exit.
    """
    if not isinstance(error, BrokenPipeError):
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not poll.poll(0):  # stdout is still open, so another pipe was closed.
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return True
