"""Tests of the benchmark of post-processings: its results agree with `postprocess`."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from benchmarks import postprocessing
from models.encoder.encoder import Encoder
from training import cli
from training.data.corpus import open_corpus
from training.evaluation import sts
from training.evaluation.pairs import Pair

THINGS = ("man", "woman", "dog", "cat", "bird", "fish", "horse", "guitar", "river", "city")
DEEDS = ("can see", "will find", "can hear")
TASKS = {
    "STSB": {
        "test": [
            Pair(f"the {a} can see", f"a {b} can hear", float(abs(i - j) % 6))
            for (i, a), (j, b) in itertools.product(enumerate(THINGS), repeat=2)
        ]
    }
}


@pytest.mark.slow  # The test makes two exports.
def test_what_it_keeps_is_what_the_command_makes(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = tmp_path / "domain.txt"
    sentences.write_text(
        "".join(f"the {a} {deed} the {b}\n" for a, deed, b in itertools.product(THINGS, DEEDS, THINGS))
    )
    rows = (("whitening", {"dims": 8}), ("dcl", {"batch_size": 16}))
    for name, value in {
        "FILE": tmp_path / "kept.json",
        "ENCODER": str(tiny_backbone),
        "TARGET_DIMS": 8,
        "ROWS": rows,
        "STS_TASKS": TASKS,
        "sts_tasks": lambda _: TASKS,
        "open_corpus": lambda _: open_corpus([str(sentences)]),
    }.items():
        monkeypatch.setattr(postprocessing, name, value)
    monkeypatch.setattr(sys, "argv", ["postprocessing", "--data", str(tmp_path)])

    postprocessing.main()

    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["sentences"] == 285  # The command is fitted to the same sentences.
    plain, target, *fitted = kept["rows"]
    assert plain["STSB"] == _score(Encoder.load(tiny_backbone))
    assert target["transform"] == "whitening on the tests"
    for (name, changed), row in zip(rows, fitted, strict=True):
        settings = [word for key, value in changed.items() for word in ("--set", f"{key}={value}")]
        command = ["postprocess", name, str(tiny_backbone), "--corpus", str(sentences), "--out", str(tmp_path / name)]
        assert cli.main([*command, *settings]) == 0
        assert row["transform"] == name and row["params"].items() >= changed.items()
        assert row["STSB"] == pytest.approx(_score(Encoder.load(tmp_path / name)), abs=0.011)
    assert len({row["STSB"] for row in kept["rows"]}) == 4, "each does something else"


def test_data_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["postprocessing", "--data", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit) as ended:
        postprocessing.main()
    assert ended.value.code == 2 and "nowhere lacks STS12, STS13, " in capsys.readouterr().err


def _score(encoder: Encoder) -> float:
    return round(sts.evaluate(encoder.eval().encode, TASKS)["STSB"].spearman.all, 2)
