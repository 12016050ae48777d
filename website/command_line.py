"""`python -m website.command_line`: the page of every command, from the parsers themselves."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from unittest.mock import patch

from isosphere.command import GROUPS, Command, main

ABOUT = """\
# Command line

This page shows the help of every command. Use it to look up an option. It is generated from the code, and
`isosphere COMMAND --help` prints the same.

`source .venv/bin/activate` puts `isosphere` on your path. Every command exits with 0 after success, 1 after a
failure and 2 for wrong input. `isosphere --version` prints the version.
"""
WIDTH = "80"
"""Columns that fit beside the navigation."""


class _Parsing(Exception):
    """Carry the parser that was about to read the arguments."""


def page() -> str:
    """Render every command, by group."""
    parts = [ABOUT]
    for title, commands in GROUPS.items():
        parts.append(f"## {title}")
        for name, command in commands.items():
            parts += [f"### isosphere {name}", f"{command.summary[0].upper()}{command.summary[1:]}."]
            parts.append(_block("sh", f"isosphere {command.example}"))
            parts += _helps(name, command)
    return "\n\n".join(parts)


def _helps(name: str, command: Command) -> Iterator[str]:
    if name == "serve":
        yield "The options are listed in [server settings](settings.md)."
        return
    for parser in leaves(parser_of(name, command.verb or name)):
        yield _block("text", parser.format_help())


def parser_of(name: str, verb: str) -> argparse.ArgumentParser:
    """Return the parser with the options of one command, caught before it reads any."""

    def caught(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise _Parsing(parser)

    with patch.object(argparse.ArgumentParser, "parse_known_args", caught):
        try:
            main([name])
        except _Parsing as parsing:
            parser: argparse.ArgumentParser = parsing.args[0]
    return _verbs(parser).get(verb, parser)


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers that have no subcommands: the parser, or those below it."""
    verbs = _verbs(parser)
    if not verbs:
        yield parser
    for one in verbs.values():
        yield from leaves(one)


def _verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


if __name__ == "__main__":
    os.environ["COLUMNS"] = WIDTH
    print(page())
