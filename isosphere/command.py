"""The command `isosphere`. Every command of the project is one of its subcommands.

A subcommand's module is imported only when the subcommand runs, so `--help` is fast.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import NoReturn

from models.cli.command_line import GONE, flush, has_gone, verbs
from models.cli.ending import leave
from models.cli.table import COMMANDS, GROUPS
from models.errors import did_you_mean

USAGE_ERROR = 2


def program() -> NoReturn:
    """Run the command that `sys.argv` names, and end the process with its exit status."""
    leave(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. The status is 2 if the command does not exist."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        return _print(help_text())
    if name in ("-V", "--version"):
        return _print(f"isosphere {version('isosphere')}")
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or "; isosphere --help lists all commands"
        print(f"isosphere: there is no command {name!r}{hint}", file=sys.stderr)
        return USAGE_ERROR
    command = COMMANDS[name]
    verb = name if command.verb is None else command.verb
    status: int = import_module(f"{command.program}.__main__").main([*([verb] if verb else []), *rest])
    return status


def _print(text: str) -> int:
    """Print a text and return 0. If the reader closed stdout early, as `head` does, return the status `GONE`."""
    try:
        print(text)
        flush()
    except BrokenPipeError as error:
        if not has_gone(error):
            raise
        return GONE
    return 0


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command. Modules that are only needed to run the command are not imported."""
    command = COMMANDS[name]
    if command.program == "serving":
        return import_module("serving.commands.options").parser_of(command.verb or name)  # type: ignore[no-any-return]
    module = "training.cli.options" if command.program == "training" else f"{command.program}.__main__"
    program: argparse.ArgumentParser = import_module(module).parser()
    return verbs(program).get(name, program)


def help_text() -> str:
    """Return the help text: all commands by group, each with an example."""
    width = max(map(len, COMMANDS))
    lines = ["usage: isosphere COMMAND [options]", "", "`isosphere COMMAND --help` lists the options of a command."]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:"]
        for name, command in commands.items():
            lines += [f"  {name:{width}}  {command.summary}", f"  {'':{width}}    isosphere {command.example}"]
    return "\n".join(lines)
