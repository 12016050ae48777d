"""`python -m website.command_line`: the page of every command, from the parsers themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator

from isosphere.command import parser_of
from models.cli.command_line import leaves
from models.cli.table import GROUPS

ABOUT = """\
# Command line

This page shows the help of every command. Use it to look up an option. It is generated from the code, and
`isosphere COMMAND --help` prints the same.

`source .venv/bin/activate` puts `isosphere` on your path. `isosphere --version` prints the version. Every command exits
with 0 after success, 1 if the work failed, 2 if an input or option can't be used, and 130 after Ctrl-C.

`isosphere completion bash > ~/.local/share/bash-completion/completions/isosphere` lets Tab complete commands, options
and files. It needs the extra `completion`, which `make setup` installs. For zsh and fish, see
[`isosphere completion`](#isosphere-completion).
"""
WIDTH = "80"
"""Columns that fit beside the navigation."""


def page() -> str:
    """Render every command, by group."""
    parts = [ABOUT]
    for title, commands in GROUPS.items():
        parts.append(f"## {title}")
        for name, command in commands.items():
            parts += [f"### isosphere {name}", f"{command.summary[0].upper()}{command.summary[1:]}."]
            parts.append(_block("sh", f"isosphere {command.example}"))
            parts += _helps(name)
    return "\n\n".join(parts)


def _helps(name: str) -> Iterator[str]:
    if name == "serve":
        yield "The options are listed in [server settings](settings.md)."
        return
    for parser in leaves(parser_of(name)):
        yield _block("text", parser.format_help())


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


if __name__ == "__main__":
    os.environ["COLUMNS"] = WIDTH
    print(page())
