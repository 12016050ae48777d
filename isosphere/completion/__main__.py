"""Command `isosphere completion`: print the script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from isosphere.command import parser_of
from models.cli.command_line import Parser, verbs
from models.cli.table import COMMANDS, described, texts

SHELLS = ("bash", "zsh", "fish")
FILES = re.compile("FILE|DIR|PATH|BUNDLE|RUN|JSON")
"""Pattern of argument placeholders that stand for files or folders."""
INSTALL = """\
bash: isosphere completion bash > ~/.local/share/bash-completion/completions/isosphere
zsh: isosphere completion zsh > _isosphere, in a folder of $fpath
fish: isosphere completion fish > ~/.config/fish/completions/isosphere.fish"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the completion script to stdout and return the exit status."""
    shell = parser().parse_args(arguments).shell
    try:
        import shtab
    except ModuleNotFoundError:
        installs = "`make setup` or, without a checkout, `pip install 'isosphere[completion]'`"
        print(f"isosphere completion: needs the extra `completion`: {installs}", file=sys.stderr)
        return 2
    everything = argparse.ArgumentParser(
        prog="isosphere", description="Sentence embeddings: train, evaluate, serve, search."
    )
    commands = everything.add_subparsers()
    for name, command in COMMANDS.items():
        about = described(command.summary, command.example)
        commands.add_parser(name, add_help=False, parents=[parser_of(name)], **about)
    for action in _actions(everything):
        if action.type is Path or FILES.search(str(action.metavar)):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(everything, shell=shell))
    return 0


def parser() -> Parser:
    """Return the parser of this command."""
    about = texts(*COMMANDS["completion"][:2])
    about["epilog"] = f"{INSTALL}\n\n{about['epilog']}"
    own = Parser(prog="isosphere completion", **about)
    own.add_argument("shell", choices=SHELLS, help=f"shell: {', '.join(SHELLS)}")
    return own


def _actions(of: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    yield from of._actions
    for one in verbs(of).values():
        yield from _actions(one)


if __name__ == "__main__":
    sys.exit(main())
