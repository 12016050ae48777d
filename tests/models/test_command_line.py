from __future__ import annotations

import pytest

from models.__main__ import main
from models.cli import commands
from models.cli.command_line import Parser
from models.errors import none_of


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [(["trian"], "train"), (["--prot=3"], "--port"), (["xyz"], None), (["--xyz"], None)],
)
def test_a_misspelt_word_is_answered_with_the_nearest(
    arguments: list[str], nearest: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = Parser(prog="tool")
    parser.add_argument("verb", nargs="?", choices=["train", "serve"])
    parser.add_argument("--port")
    with pytest.raises(SystemExit) as left:
        parser.parse_args(arguments)
    said = capsys.readouterr().err
    assert left.value.code == 2 and said.count("\n") == 1
    assert said.rstrip().endswith(f"did you mean {nearest}?") if nearest else "did you mean" not in said


def test_a_home_directory_is_expanded_behind_an_equals_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    parser = Parser(prog="tool")
    parser.add_argument("--out")
    assert [parser.parse_args([f"--out={given}"]).out for given in ("~/a b", "a~/b", "~x")] == [
        *("/home/me/a b", "a~/b", "~x")
    ]


def test_names_that_there_are_follow_a_wrong_one() -> None:
    assert none_of("temprature", ["head", "temperature"]).endswith(
        "none of head, temperature; did you mean temperature?"
    )
    assert none_of("x", ["head"]) == "'x' is none of head"


def test_ctrl_c_ends_a_command_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(commands.COMMANDS, "export", interrupted)
    assert main(["export", "minilm", "--out", "out"]) == 130
    assert capsys.readouterr().err == "isosphere: interrupted\n"
