"""Fixtures: recipe files of encoders that are rebuilt in seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from training import cli

Capture = pytest.CaptureFixture[str]
Call = Callable[..., int]
Refusal = Callable[[Path], str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def described(tiny_backbone: Path) -> Callable[..., Path]:
    """Return a function that writes a file of two seeds with two steps each."""

    def describe(more: str = "") -> Path:
        base = {
            "objective": "simcse",
            "backbone": str(tiny_backbone),
            "max_steps": 2,
            "batch_size": 8,
            "eval_every": 1,
            "learning_rate": 1e-3,
            "pooling": "mean",
            "precision": "fp32",
            "device": "cpu",
        }
        described = (
            "[base]\n" + "".join(f"{key} = {value!r}\n" for key, value in base.items()) + "[grid]\nseed = [0, 1]\n"
        )
        file = Path("tiny.toml")
        file.write_text(described + more if more.startswith("[") else more + described)
        return file

    return describe


@pytest.fixture
def rebuilt(stsb_data: Path, corpus_file: Path) -> Call:
    def call(file: Path, *, data: Path = stsb_data, corpus: Path = corpus_file) -> int:
        return cli.main(["rebuild", str(file), "--data", str(data), "--corpus", str(corpus)])

    return call


@pytest.fixture
def refused(rebuilt: Call, capsys: Capture) -> Refusal:
    """Return a function that returns the error message for a refused file."""

    def call(file: Path) -> str:
        assert rebuilt(file) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        return err

    return call


@pytest.fixture
def taught(described: Callable[..., Path]) -> Callable[[str], Path]:
    """Return a function that writes a file of one seed, with another file's encoder as start and teacher."""
    described()

    def describe(more: str = "") -> Path:
        file = Path("taught.toml")
        file.write_text(
            f"{more}\nafter = ['tiny.toml']\n[base]\nobjective = 'distillation'\n"
            "backbone = 'artifacts/tiny'\nteacher = 'artifacts/tiny'\n"
            "max_steps = 2\nbatch_size = 8\neval_every = 1\nprecision = 'fp32'\ndevice = 'cpu'\n"
        )
        return file

    return describe


def never(*_: object, **__: object) -> None:
    raise AssertionError("there is nothing to train")
