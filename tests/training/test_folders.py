"""Tests of the folders of a run: their contents are checked before the first step."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from training.checkpoints import record
from training.checkpoints.publish import Outcome, publish
from training.checkpoints.record import RunError
from training.config import RunConfig
from training.machine.interrupt import LockError, locked
from training.step import Step

Fit = Callable[..., tuple[Outcome, str]]
MakeConfig = Callable[..., RunConfig]


def test_a_second_run_needs_another_folder(make_config: MakeConfig, fitted: Fit) -> None:
    config = make_config(max_steps=1)
    fitted(config)
    with pytest.raises(RunError, match=r"runs/one already contains a run: .*--resume"):
        fitted(config)


def test_a_trained_bundle_whose_run_is_gone_is_replaced_only_by_force(make_config: MakeConfig, fitted: Fit) -> None:
    config = make_config(max_steps=1)
    publish(config, fitted(config)[0], {})
    shutil.rmtree(config.run)
    with pytest.raises(RunError, match=r"--out .*artifacts/one contains the encoder of an earlier run: .*--force"):
        fitted(config)
    assert not Path(config.run).exists()
    fitted(config, force=True)


def test_a_run_that_never_began_is_not_resumed(make_config: MakeConfig, fitted: Fit) -> None:
    with pytest.raises(RunError, match=r"runs/one contains no run"):
        fitted(make_config(), resume=True)


def test_what_is_left_of_a_partly_removed_run_is_not_resumed(
    copied: RunConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = copied.override({"max_steps": 1})
    (Path(copied.run) / "config.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            fitted(new)
    outcome, said = fitted(new, resume=True)
    assert outcome.steps == 1 and "from step" not in said


def test_force_removes_no_files_of_others(make_config: MakeConfig, copied: RunConfig, tmp_path: Path) -> None:
    config = make_config(run=str(tmp_path / "runs"))
    record.create_run(config, {})
    with pytest.raises(RunError, match=r"runs/copied: is not a file of the run"):
        record.remove_run(Path(config.run))
    assert record.has_run(Path(copied.run)) and record.has_run(Path(config.run))


def test_an_out_folder_that_is_no_bundle_is_refused_before_training(make_config: MakeConfig, fitted: Fit) -> None:
    config = make_config()
    Path(config.out).mkdir(parents=True)
    (Path(config.out) / "thesis.txt").write_text("dear")
    with pytest.raises(RunError, match=r"--out .*artifacts/one: exists and is not a bundle"):
        fitted(config)
    assert not Path(config.run).exists()


@pytest.mark.parametrize("spoilt", ["a note in it", "a broken manifest", "a link"])
def test_what_export_would_refuse_is_refused_before_training(
    spoilt: str, make_config: MakeConfig, fitted: Fit, tiny_bundle: Path
) -> None:
    config = make_config()
    out = Path(config.out)
    if spoilt == "a link":
        out.parent.mkdir(parents=True, exist_ok=True)
        out.symlink_to(tiny_bundle)
    else:
        shutil.copytree(tiny_bundle, out)
        (out / {"a note in it": "notes.txt"}.get(spoilt, "manifest.json")).write_text("{")
    with pytest.raises(
        RunError, match=r"^--out .*artifacts/one.* is not replaced$|^--out .*artifacts/one: is a link to"
    ):
        fitted(config)
    assert not Path(config.run).exists()


@pytest.mark.parametrize("inside", [".", "run"])
def test_a_record_in_the_folder_of_the_bundle_is_refused_before_training(
    inside: str, make_config: MakeConfig, fitted: Fit
) -> None:
    out = Path(make_config().out)
    with pytest.raises(RunError, match=rf"^run: {out / inside} is inside the folder of the bundle, --out {out}"):
        fitted(make_config(run=str(out / inside)))
    assert not out.exists()


@pytest.mark.slow
def test_a_run_that_another_process_trains_is_not_taken_up(make_config: MakeConfig, fitted: Fit) -> None:
    config = make_config()
    fitted(config)
    with locked(Path(config.run)), pytest.raises(LockError, match="runs/one: another process is using this folder"):
        fitted(config, resume=True)
    fitted(config, resume=True)


def test_of_two_runs_that_begin_at_once_the_second_writes_nothing(make_config: MakeConfig, fitted: Fit) -> None:
    config = make_config()
    with locked(Path(config.run)), pytest.raises(LockError):
        fitted(config)
    assert not record.has_run(Path(config.run))


def test_an_out_folder_that_can_not_be_written_is_refused_before_training(
    make_config: MakeConfig, fitted: Fit, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    config = make_config(out=str(tmp_path / "file" / "bundle"))
    with pytest.raises(RunError, match=r"--out .*file/bundle: .*is not a folder"):
        fitted(config)
    assert not Path(config.run).exists()
