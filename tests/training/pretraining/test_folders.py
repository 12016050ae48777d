"""Tests of the folders of a run: problems are found before the first step, and foreign files are not touched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.training.pretraining.runs import Capture, call, metrics
from training.checkpoints.record import RunError
from training.data.corpus import open_corpus
from training.machine.interrupt import locked
from training.pretraining.config import PretrainConfig
from training.pretraining.model import build_model
from training.pretraining.run import RECORD, publish


def test_folders_that_are_taken(small: list[str], capsys: Capture) -> None:
    Path("artifacts/thesis").mkdir(parents=True)
    Path("artifacts/thesis/chapter.txt").write_text("dear")
    assert call(*small, "--out", "artifacts/thesis") == 2
    assert "artifacts/thesis exists and is not a pre-trained model" in capsys.readouterr().err
    assert call(*small) == 0
    assert call(*small) == 2
    assert "runs/mlm already contains a run" in capsys.readouterr().err
    assert call(*small, "--resume", "--seed", "7") == 2
    assert capsys.readouterr().err.rstrip().endswith("changed: seed (42, 7)")
    with locked(Path("runs/mlm")):
        assert call(*small, "--resume") == 2
    assert "runs/mlm: another process is using this folder" in capsys.readouterr().err
    assert call(*small, "--resume") == 0, "a run that ended only leaves its model again"


@pytest.mark.parametrize("name", ["notes.txt", "tuned/model.safetensors"])
def test_a_model_that_something_else_lies_in_is_left_alone(name: str, small: list[str], capsys: Capture) -> None:
    assert call(*small) == 0
    again = (*small, "--set", "run=runs/again")
    assert call(*again) == 0, "alone it gives way"
    notes = Path("artifacts/mlm", name)
    notes.parent.mkdir(exist_ok=True)
    notes.write_text("dear")
    capsys.readouterr()
    assert call(*small, "--set", "run=runs/third") == 2
    err = capsys.readouterr().err
    assert f"artifacts/mlm/{name}: not a file of the pre-trained model" in err and err.count("\n") == 1
    assert notes.read_text() == "dear"
    assert not Path("runs/third").exists(), "refused before it began"


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_not_replaced_by_a_model(there: bool, small: list[str], capsys: Capture) -> None:
    Path("artifacts").mkdir()
    link, disk = Path("artifacts/mlm"), Path("disk")
    link.symlink_to("../disk")
    if there:
        disk.mkdir()
    assert call(*small) == 2
    err = capsys.readouterr().err
    assert "--out artifacts/mlm: a link to ../disk; name the folder itself" in err and err.count("\n") == 1
    assert link.is_symlink() and disk.exists() is there
    assert not Path("runs").exists(), "refused before it began"


@pytest.mark.parametrize("record", ["{}", '{"files": 5}', "[", "[]"])
def test_a_model_whose_files_are_not_known_is_left_alone(record: str, small: list[str], capsys: Capture) -> None:
    file = Path("artifacts/mlm", RECORD)
    file.parent.mkdir(parents=True)
    file.write_text(record)
    assert call(*small) == 2
    err = capsys.readouterr().err
    assert f"{file}: does not list the files of the model" in err and err.count("\n") == 1
    assert file.read_text() == record


def test_what_a_crash_left_beside_the_model_is_cleared_and_what_came_meanwhile_is_kept(
    small: list[str], capsys: Capture
) -> None:
    assert call(*small) == 0
    before = Path("artifacts/.mlm.previous-bundle")
    shutil.copytree("artifacts/mlm", before)
    assert call(*small, "--resume") == 0, "the crash was after the swap, before the old model was gone"
    assert not before.exists()
    Path("artifacts/mlm", RECORD).unlink()
    Path("artifacts/mlm/chapter.txt").write_text("dear")
    config = PretrainConfig.from_json(Path("runs/mlm/config.json").read_text())
    with pytest.raises(RunError, match="is not a pre-trained model"):
        publish(config, build_model(config, torch.device("cpu")), open_corpus(config.corpus).census)
    assert Path("artifacts/mlm/chapter.txt").read_text() == "dear"


@pytest.mark.parametrize("run", ["artifacts/x", "artifacts/x/run", "artifacts/../artifacts/x/run"])
def test_a_record_inside_the_model_is_refused(run: str, small: list[str], capsys: Capture) -> None:
    assert call(*small, "--out", "artifacts/x", "--set", f"run={run}") == 2
    err = capsys.readouterr().err
    assert f"run: {run} is inside artifacts/x (out)" in err and err.count("\n") == 1
    assert not Path("artifacts").exists(), "refused before it began"


def test_the_model_may_lie_beside_its_record(small: list[str]) -> None:
    arguments = (*small, "--out", "runs/mlm/model", "--set", "run=runs/mlm")
    assert call(*arguments) == 0
    assert call(*arguments, "--resume") == 0
    assert Path("runs/mlm/model", RECORD).exists() and len(metrics("runs/mlm")) == 9
