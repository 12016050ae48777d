from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from isosphere.command import main, parser_of
from isosphere.completion.__main__ import SHELLS
from models import names
from models.__main__ import main as models
from models.cli import commands
from models.cli.command_line import leaves
from models.cli.table import COMMANDS
from models.runtimes import RUNTIMES
from serving.corpora.values import Stemming
from training.cli.options import ADD_OPTIONS
from training.evaluation.bootstrap import RESAMPLES
from training.evaluation.suite import TASKS
from training.studies.papers import PAGES, PAPERS, RECORDED
from training.studies.plan import FOLDER
from training.studies.soup import GRID

HEAVY = "torch numpy transformers huggingface_hub onnxruntime fastapi uvicorn prometheus_client"


def test_it_has_every_command_of_the_packages() -> None:
    listed = {"training": set(ADD_OPTIONS), "models": set(commands.COMMANDS)}
    for program, expected in listed.items():
        assert {name for name, command in COMMANDS.items() if command.program == program} == expected


@pytest.mark.parametrize("name", COMMANDS)
def test_its_examples_are_understood(name: str) -> None:
    for leaf in leaves(parser_of(name)):
        first, *arguments = shlex.split(_example(leaf).partition(" > ")[0])
        assert first == name
        parser = parser_of(name)
        parser.parse_args(arguments)


def _example(parser: argparse.ArgumentParser) -> str:
    found = re.search(r"^example: isosphere (.+)$", f"{parser.description}\n{parser.epilog}", re.MULTILINE)
    assert found, f"{parser.prog} has no example"
    return found[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_the_options_mean_and_how_the_command_ends(name: str) -> None:
    for leaf in leaves(parser_of(name)):
        assert "exit status: 0 " in f"{leaf.description}{leaf.epilog}"
        assert not re.search(r"\{\w+\.\w+\}", leaf.format_help()), f"{leaf.prog}: an expression that was not evaluated"
        for action in leaf._actions:
            assert action.help, f"{leaf.prog}: {action.dest}"
            if action.default not in (None, False, [], argparse.SUPPRESS):
                assert "default" in action.help, f"{leaf.prog}: {action.dest}"


def test_names_and_defaults_in_the_help_are_those_of_the_code() -> None:
    commands = ("study", "soup", "evaluate", "ingest")
    helps = " ".join(leaf.format_help() for name in commands for leaf in leaves(parser_of(name)))
    words = " ".join(helps.split())
    assert f"tasks: {', '.join(TASKS)}, all" in words
    assert f"--stemming {{{','.join(get_args(Stemming))}}}" in words
    assert all(paper in words for paper in PAPERS)
    for default in (f"{FOLDER}/NAME", RESAMPLES, RECORDED, PAGES, f"best of {GRID[0]:g}, {GRID[1]:g} … {GRID[-1]:g}"):
        assert f"(default: {default}" in words
    assert tuple(RUNTIMES) == names.RUNTIME_NAMES


def test_a_command_does_what_its_package_does(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert models(["inspect", str(tiny_bundle)]) == 0
    expected = capsys.readouterr().out
    assert main(["inspect", str(tiny_bundle)]) == 0
    assert capsys.readouterr().out == expected != ""


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (["tarin"], "did you mean train?"),
        (["serv"], "did you mean serve?"),
        (["?"], "--help"),
        (["train", "simcs"], "did you mean simcse?"),
        (["train", "simcse", "--corpsu", "a.txt"], "did you mean --corpus?"),
        (["train", "simcse", "--preset", "minilm-pasages"], "did you mean minilm-passages?"),
        (["train", "simcse", "--set", "batchsize=3"], "did you mean batch_size?"),
        (["study", "list", "dlcr"], "did you mean dclr?"),
        (["postprocess", "whitning", "minilm", "--out", "x"], "did you mean whitening?"),
        (["data", "get", "scifat"], "did you mean scifact?"),
        (["keys", "ad"], "did you mean add?"),
        (["ingest", "a.csv", "--corpus", "c", "--text-colum", "body"], "did you mean --text-column?"),
        (["ingest", "a.csv", "--corpus", "c", "--engin", "fake"], "did you mean --engine?"),
    ],
    ids=" ".join,
)
def test_a_misspelt_word_names_the_nearest(given: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(given) == 2
    except SystemExit as end:
        assert end.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("isosphere") and hint in line


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert all(f"isosphere {command.example}" in printed for command in COMMANDS.values())


def test_no_help_waits_for_a_library_that_only_the_command_needs() -> None:
    script = """
import os, sys
from contextlib import redirect_stdout, suppress
from isosphere.command import main
from models.cli.table import COMMANDS
with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
    for name in COMMANDS:
        with suppress(SystemExit):
            main([name, "--help"])
print(*(name for name in sys.argv[1].split() if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script, HEAVY], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_has_every_command_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    words = {*COMMANDS, "extract", "report", "objective", "max-queued-tokens", "simcse", "chunk-tokens"}
    assert not {word for word in words if word not in script}


def test_bash_completes_a_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    ask = """
source "$1"; compopt() { :; }
COMP_WORDS=(isosphere train simcse --pre); COMP_CWORD=3; COMPREPLY=(); _shtab_isosphere; echo "${COMPREPLY[@]}"
"""
    asked = subprocess.run(["bash", "-c", ask, "_", tmp_path / "script"], capture_output=True, text=True, check=True)
    assert asked.stdout == "--preset\n", asked.stderr
