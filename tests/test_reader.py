"""Tests of a closed stdout, as by `| head`, which no command reports as an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from models.cli.command_line import GONE, has_gone


def _unread(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run `python -m` with a stdout whose reader has already closed it."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [sys.executable, "-m", *arguments], stdout=writing, stderr=subprocess.PIPE, check=False, timeout=120
        )
    finally:
        os.close(writing)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("training", "data", "list"), ("serving", "openapi"), ("isosphere", "--help")], ids=" ".join
)
def test_a_reader_who_has_gone_hears_nothing_more(arguments: tuple[str, ...]) -> None:
    done = _unread(*arguments)
    assert (done.returncode, done.stderr) == (GONE, b"")


def test_a_manifest_that_nobody_reads(tiny_bundle: Path) -> None:
    done = _unread("models", "inspect", str(tiny_bundle))
    assert (done.returncode, done.stderr) == (GONE, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("models", "inspect"), ("training", "data", "list"), ("serving", "keys", "list")], ids=" ".join
)
def test_a_process_without_stdout_does_its_work(arguments: tuple[str, ...], tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"format": 1, "keys": []}')
    names = {"inspect": [str(tiny_bundle)], "keys": ["--api-keys-file", str(tmp_path / "keys.json")]}
    script = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', *sys.argv[1:]])"
    command = [sys.executable, "-c", script, *arguments, *names.get(arguments[1], [])]
    done = subprocess.run(command, stderr=subprocess.PIPE, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")


def test_another_pipe_that_broke_is_an_error_as_any() -> None:
    """Break another pipe, while stdout is read. This is an error and must be reported."""
    script = "import sys; from models.cli.command_line import has_gone; sys.exit(has_gone(BrokenPipeError()))"
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=False).returncode == 0
    assert not has_gone(FileNotFoundError())
