"""Tests of `finish`, which exports the best weights of a run that does not continue."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from models.encoder.encoder import Encoder
from training import cli, run
from training.checkpoints import checkpoint
from training.checkpoints.checkpoint import CheckpointError
from training.checkpoints.publish import Outcome
from training.checkpoints.record import RunError
from training.config import RunConfig
from training.loop import DivergedError
from training.machine.interrupt import InterruptedRun, LockError, locked
from training.step import Step

Fit = Callable[..., tuple[Outcome, str]]
MakeConfig = Callable[..., RunConfig]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def broken_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that makes losses NaN from the step of this number on."""
    taken, whole = 0, Step.__call__

    def broken(at: int) -> None:
        def call(self: Step, *arguments: Any) -> Any:
            nonlocal taken
            taken += 1
            values = whole(self, *arguments)
            return {**values, "loss": torch.tensor(torch.nan)} if taken >= at else values

        monkeypatch.setattr(Step, "__call__", call)

    return broken


@pytest.fixture
def diverged(make_config: MakeConfig, fitted: Fit, broken_at: Callable[[int], None]) -> RunConfig:
    """Return a run of 14 steps that diverged at step 12, with evaluations at 0, 5 and 10."""
    broken_at(12)
    config = make_config()
    with pytest.raises(DivergedError, match="exports the best weights from before it"):
        fitted(config)
    return config


def test_a_run_that_diverged_before_its_first_checkpoint_can_not_be_finished(
    make_config: MakeConfig, fitted: Fit, broken_at: Callable[[int], None]
) -> None:
    broken_at(2)
    with pytest.raises(DivergedError) as diverged:
        fitted(make_config())
    assert "isosphere replay" in str(diverged.value) and "isosphere finish" not in str(diverged.value)


def finish(config: RunConfig) -> Outcome:
    return run.finish(config, io.StringIO())


def weights(encoder: Encoder) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in encoder.backbone.state_dict().items()}


def test_a_run_that_diverged_leaves_the_best_weights_before_it(diverged: RunConfig, capsys: Capture) -> None:
    judged = [json.loads(line) for line in (Path(diverged.run) / "metrics.jsonl").read_text().splitlines()]
    scores = {line["step"]: line["self_retrieval_mrr10"] for line in judged if line["kind"] == "evaluation"}
    assert sorted(scores) == [0, 5, 10]
    best = max(scores, key=lambda step: scores[step])
    before = sorted(path.read_bytes() for path in Path(diverged.run).glob("*.safetensors"))

    assert cli.main(["finish", diverged.run]) == 0

    said = capsys.readouterr().out
    assert said == f"{diverged.out}: self_retrieval_mrr10 {scores[best]:.4f} at step {best}\n"
    manifest = json.loads((Path(diverged.out) / "manifest.json").read_text())
    assert manifest["run"]["best_step"] == best
    assert [each["step"] for each in manifest["run"]["curve"]] == [0, 5, 10]
    kept = load_file(Path(diverged.run) / f"best-{best:08d}.safetensors")
    made = weights(Encoder.load(diverged.out))
    assert all(torch.equal(made[name], kept[f"backbone.{name}"]) for name in made)
    assert before == sorted(path.read_bytes() for path in Path(diverged.run).glob("*.safetensors"))


@pytest.mark.parametrize("begun", [True, False])
def test_who_stops_a_run_hears_of_it(
    begun: bool, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Print the hint, unless the run was stopped before its first checkpoint."""

    def fit(config: RunConfig, *_: Any, **__: Any) -> None:
        Path(config.run).mkdir(parents=True)
        if begun:
            (Path(config.run) / checkpoint.CHECKPOINT).touch()
        raise InterruptedRun("stopped after step 3 of 9")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "fit", fit)
    assert cli.main(["train", "simcse", "--out", "artifacts/my encoder"]) == 130
    hint = "isosphere finish 'runs/my encoder' exports the best weights so far; " if begun else ""
    said = f"stopped after step 3 of 9; {hint}resume with the same command and --resume\n"
    assert capsys.readouterr().err.endswith(f": {said}")


def test_who_stops_a_run_once_more_hears_by_which_name_it_goes_on(
    make_config: MakeConfig, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Print the run's folder, because a second run has folders that the command does not name."""
    going_on: list[bool] = []

    def fit(config: RunConfig, *_: Any, resume: bool, force: bool) -> None:
        Path(config.run).mkdir(parents=True, exist_ok=True)
        (Path(config.run) / "config.json").write_text(config.to_json())
        going_on.append(resume)
        raise InterruptedRun("stopped after step 3 of 9")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "fit", fit)
    first = make_config(run="runs/my encoder", out="artifacts/my encoder")
    Path(first.run).mkdir(parents=True)
    (Path(first.run) / "config.json").write_text(first.to_json())
    for options in ([], ["--out", "artifacts/other"], ["--set", "run=runs/other-2"]):
        command = ["train", "--config", "runs/my encoder/config.json", *options]
        assert cli.main(command) == 130
        (again,) = re.findall("resume with the same command and (--resume.*)\n", capsys.readouterr().err)
        assert cli.main([*command, *shlex.split(again)]) == 130
        capsys.readouterr()
    assert going_on == [False, True] * 3
    assert len(list(Path("runs").iterdir())) == 4, "of three runs and the one they repeat"


@pytest.mark.slow
def test_what_a_kill_left_behind_the_checkpoint_is_not_told(diverged: RunConfig) -> None:
    """Ignore an evaluation after the last checkpoint, and an incomplete last line."""
    metrics = Path(diverged.run) / "metrics.jsonl"
    with metrics.open("a") as file:
        file.write('{"kind": "evaluation", "step": 14, "self_retrieval_mrr10": 99.0}\n{"kind": "train", "st')
    before = metrics.read_bytes()
    assert cli.main(["finish", diverged.run]) == 0
    of_run = json.loads((Path(diverged.out) / "manifest.json").read_text())["run"]
    assert of_run["steps"] == 10 and [each["step"] for each in of_run["curve"]] == [0, 5, 10]
    assert metrics.read_bytes() == before


def test_that_nothing_was_learnt_is_said(
    make_config: MakeConfig, fitted: Fit, broken_at: Callable[[int], None], capsys: Capture
) -> None:
    broken_at(7)
    config = make_config(learning_rate=1e-30)
    with pytest.raises(DivergedError):
        fitted(config)
    assert cli.main(["finish", config.run]) == 0
    out, err = capsys.readouterr()
    assert out.endswith(" at step 0\n")
    assert "ended after step 5\n" in err and f"no step was better than the initial weights of {config.backbone}" in err
    assert "at step 0, " in err and "at step 5\n" in err, "up to where it ended"


def test_it_may_go_on_afterwards(diverged: RunConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(diverged)
    monkeypatch.undo()
    outcome, said = fitted(diverged, resume=True)
    assert "from step 10" in said and "step 14" in said
    assert outcome.best.step in (0, 5, 10, 14)


def test_a_run_that_ended_gives_its_outcome_again(copied: RunConfig, ended: Any) -> None:
    outcome = finish(copied)
    assert outcome.best == ended.outcome.best
    ours, theirs = weights(outcome.encoder), weights(ended.outcome.encoder)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_elsewhere_if_asked(copied: RunConfig, tmp_path: Path) -> None:
    assert cli.main(["finish", copied.run, "--out", str(tmp_path / "there")]) == 0
    assert (tmp_path / "there" / "manifest.json").exists()
    moved = tmp_path / "moved"
    shutil.move(copied.run, moved)
    assert cli.main(["finish", str(moved), "--out", str(tmp_path / "again")]) == 0
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("there", "again")]
    assert manifests[0]["fingerprint"] == manifests[1]["fingerprint"]


def test_a_run_that_was_never_judged_has_nothing_to_leave(
    make_config: MakeConfig, fitted: Fit, broken_at: Callable[[int], None], capsys: Capture
) -> None:
    broken_at(2)
    config = make_config()
    with pytest.raises(DivergedError):
        fitted(config)
    assert cli.main(["finish", config.run]) == 2
    assert capsys.readouterr().err.endswith(f"{config.run}: this run has no checkpoint yet\n")


def test_what_can_not_be_finished_is_refused(copied: RunConfig, tmp_path: Path, capsys: Capture) -> None:
    with locked(Path(copied.run)), pytest.raises(LockError):
        finish(copied)
    other = tmp_path / "other.txt"
    other.write_text(Path(copied.corpus[0]).read_text() + "One more sentence .\n")
    with pytest.raises(CheckpointError, match="the corpus has changed since"):
        finish(replace(copied, corpus=(str(other),)))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match=r"--out .*foreign"):
        finish(replace(copied, out=str(foreign)))
    assert cli.main(["finish", copied.run, "--out", ""]) == 2
    assert "out: is empty" in capsys.readouterr().err

    file = Path(copied.run) / checkpoint.CHECKPOINT
    whole = file.read_bytes()
    file.write_bytes(whole[:50])
    with pytest.raises(CheckpointError, match="not a checkpoint of this run"):
        finish(copied)
    file.write_bytes(whole)
    (best,) = Path(copied.run).glob("best-*.safetensors")
    best.write_bytes(best.read_bytes()[:50])
    with pytest.raises(CheckpointError, match="not the best weights of this run"):
        finish(copied)
