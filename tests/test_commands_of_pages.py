"""Tests of the command lines in all pages: their programs accept them. Nothing is run."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from isosphere.command import main, parser_of
from models.cli.command_line import leaves
from models.cli.table import COMMANDS
from serving.settings import Settings
from tests.pages import PAGES, ROOT, blocks, commands, spans

MAKEFILE = (ROOT / "Makefile").read_text()
VERBS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"\b([A-Z]+) \?=", MAKEFILE))
OURS = re.compile(r"\.venv/bin/python -m (serving|models|training) ?(.*)")
AS_SERVE = ("serve", "ingest", "search", "export-corpus", "verify-corpus")
"""Commands that take the server's options."""
per_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


class _Accepted(BaseException):
    """Exception that a command raises after reading its arguments, when it would run."""


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let commands read their arguments without running. The process keeps its umask and signals."""
    for reader, read in ((argparse.ArgumentParser, "parse_args"), (Settings, "__init__")):
        monkeypatch.setattr(reader, read, _then_stop(getattr(reader, read)))
    umask, blocked = os.umask(0o077), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    os.umask(umask)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _then_stop(read: Any) -> Any:
    def reading(*given: Any, **named: Any) -> None:
        read(*given, **named)
        raise _Accepted

    return reading


def refused(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the reason why `isosphere` refuses the arguments, or an empty text."""
    try:
        main(arguments)
    except _Accepted:
        return ""
    except SystemExit:
        pass
    return capsys.readouterr().err or "it did not read its arguments"


@cache
def made(*arguments: str) -> list[list[str]]:
    """Return the commands `isosphere` that make would run; they are its recipes' `python -m` commands."""
    own = {**os.environ, "MAKEFLAGS": "", "ARGS": ""}  # those of the `make test` that runs this test are not the page's
    command = ["make", "-ns", *arguments]
    printed = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True).stdout
    names = {(one.program, name if one.verb is None else one.verb): name for name, one in COMMANDS.items()}
    found = []
    for program, rest in OURS.findall(printed.replace("\\\n", " ")):
        verb, *others = shlex.split(rest) or [""]
        found.append([names[program, verb], *others] if (program, verb) in names else ["serve", verb, *others])
    return found


@per_page
def test_every_command_in_a_block_is_accepted(page: Path, reading: None, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page, "sh"):
        for program, *arguments in commands(block.code):
            for given in made(*arguments) if program == "make" else [arguments]:
                assert not (reason := refused(given, capsys)), f"{block.place}: {shlex.join(given)}: {reason}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["trian", "simcse"],
        ["train", "simcse", "--frob"],
        ["train", "simcse", "--max-steps", "many"],
        ["data", "sentences", "notes.jsonl"],
        ["serve", "--frob"],
        ["search", "a question", "--corpus", "notes", "--frob"],
        ["keys", "frob"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_is_refused(
    arguments: Sequence[str], reading: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(arguments, capsys)


@per_page
def test_every_command_in_a_line_has_options_that_exist(page: Path, reading: None) -> None:
    for span in spans(page):
        for program, *words in commands(span) if span.startswith(("isosphere ", ".venv/bin/", "make ")) else ():
            if program == "make":
                assert words[0] in VERBS, span
                assert {word.partition("=")[0] for word in words if "=" in word} <= VARIABLES, span
            elif words[0] in COMMANDS:
                given = {word.partition("=")[0] for word in words if word.startswith("--")}
                assert given - {"--help"} <= options(words[0]), span
            else:
                assert words[0] in ("--help", "--version", "COMMAND"), span


@cache
def options(name: str) -> set[str]:
    """Return the options of a command and of its subcommands."""
    own = {option for leaf in leaves(parser_of(name)) for option in leaf._option_string_actions}
    served = {f"--{field.replace('_', '-')}" for field in Settings.model_fields}
    return own | served if name in AS_SERVE else own
