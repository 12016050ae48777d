"""Tests of wrong command lines: each command reports the error in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from models.__main__ import main as models
from serving.commands.keys import keys
from serving.commands.options import corpus_parser, openapi_parser
from serving.settings import SettingsError, read_settings
from training.cli import main as training


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        (models, ["export"], "isosphere export: the following arguments are required: source, --out"),
        (models, ["inspect", "x", "--frob"], "isosphere inspect: unrecognized arguments: --frob"),
        (training, ["list", "--frob"], "isosphere list: unrecognized arguments: --frob"),
        (keys, ["frob"], "isosphere keys: argument verb: invalid choice: 'frob'"),
        (lambda given: openapi_parser().parse_args(given), ["x"], "isosphere openapi: unrecognized arguments: x"),
        (
            lambda given: corpus_parser("search").parse_known_args(given),
            ["-k", "3"],
            "isosphere search: the following arguments",
        ),
        (read_settings, ["--bundle"], "isosphere serve: argument --bundle: expected one argument"),
    ],
)
def test_one_line_and_no_usage(
    command: Callable[[Sequence[str]], object],
    arguments: Sequence[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        command(arguments)
    said = capsys.readouterr().err
    assert said.startswith(says) and said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--frob"], "unrecognized arguments: --frob"),
        (["--prot", "80"], "unrecognized arguments: --prot 80; did you mean --port?"),
        (["frob"], "unrecognized arguments: frob"),
        (["--port"], "argument --port: expected one argument"),
        (["--port", "x"], "--port: Input should be a valid integer"),
    ],
)
def test_options_of_the_server(arguments: Sequence[str], says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings(arguments)
    assert str(raised.value).startswith(says)
