"""Tests of the modules that each command imports."""

from __future__ import annotations

import subprocess
import sys
from pkgutil import iter_modules

import pytest

from models.cli.command_line import leaves
from training import cli
from training.cli import options


@pytest.mark.parametrize("name", options.ADD_OPTIONS)
def test_every_command_has_its_own_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main([name, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: isosphere {name} ")


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], "torch"),
        (["fly"], "torch"),
        (["data", "list", "--to", "data"], "torch"),
        (["train", "--help"], "torch"),
        pytest.param(["list"], "transformers scipy.stats sklearn", marks=pytest.mark.slow),
    ],
)
def test_nobody_waits_for_what_a_command_does_not_use(arguments: list[str], heavy: str) -> None:
    """torch takes a second or two to load, transformers as long again, or twice, and scikit-learn half of it."""
    script = """
import sys
from training.cli import main
try:
    status = main(sys.argv[2:])
except SystemExit as end:
    status = end.code
print(status, *(name for name in sys.argv[1].split() if name in sys.modules))
"""
    command = [sys.executable, "-c", script, heavy, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{2 if arguments == ['fly'] else 0}"


def test_commands_and_their_modules_are_the_same() -> None:
    modules = {module.name for module in iter_modules(cli.__path__)}
    used = {leaf.get_default("load")().__module__ for leaf in leaves(options.parser())}
    assert {f"training.cli.{name}" for name in modules} == used | {options.__name__}


def test_an_installation_that_is_broken_is_not_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_name: str) -> None:
        raise OSError("libcublas.so.12: cannot open shared object file")

    monkeypatch.setattr(options, "resolve_name", load)
    with pytest.raises(OSError, match="libcublas"):
        cli.main(["list"])
