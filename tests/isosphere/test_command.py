from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from isosphere.command import COMMANDS, main
from isosphere.embed.__main__ import _parser as embed_parser
from models.__main__ import _parser as models_parser
from models.__main__ import main as models
from serving.commands.corpus import _parser as corpus_parser
from training import cli


def verbs(parser: argparse.ArgumentParser) -> set[str]:
    (found,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return set(found.choices)


def test_it_has_every_command_of_the_packages() -> None:
    assert {name for name, command in COMMANDS.items() if command.program == "training"} == set(cli.COMMANDS)
    assert {name for name, command in COMMANDS.items() if command.program == "models"} == verbs(models_parser())


@pytest.mark.parametrize("name", COMMANDS)
def test_its_examples_are_understood(name: str) -> None:
    command = COMMANDS[name]
    first, *arguments = shlex.split(command.example.partition(" > ")[0])
    assert first == name
    if command.program == "training":
        cli.parse([name, *arguments])
    elif command.program == "models":
        models_parser().parse_args([name, *arguments])
    elif name == "embed":
        embed_parser().parse_args(arguments)
    elif name not in ("serve", "keys", "openapi"):
        corpus_parser(command.verb or name).parse_args(arguments)


def test_a_command_does_what_its_package_does(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert models(["inspect", str(tiny_bundle)]) == 0
    expected = capsys.readouterr().out
    assert main(["inspect", str(tiny_bundle)]) == 0
    assert capsys.readouterr().out == expected != ""


@pytest.mark.parametrize(("given", "hint"), [("tarin", "train?"), ("serv", "serve?"), ("?", "--help")])
def test_an_unknown_command_names_the_nearest(given: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([given]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert all(f"isosphere {command.example}" in printed for command in COMMANDS.values())


@pytest.mark.parametrize("arguments", [["--help"], ["embed", "--help"]])
def test_help_loads_no_library(arguments: list[str]) -> None:
    code = (
        f"import atexit, os, sys, isosphere.command as c; atexit.register(lambda: os._exit('numpy' in sys.modules)); "
        f"c.main({arguments})"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
