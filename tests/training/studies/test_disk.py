"""Tests of studies on a disk that is full or returns wrong bytes."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.bundle.disk import write_whole
from tests.conftest import PATIENCE, soon
from tests.training.studies.conftest import call, planned
from tests.training.studies.test_schedule import Capture, MakeStudy, done
from training.studies import schedule
from training.studies.description import Study
from training.studies.results import RESULTS, is_finished, run_folder
from training.studies.schedule import Processes
from training.studies.scores import COSINES, COSINES_FILE, GOLDS, load_arrays, save_arrays
from training.studies.trial import Trial
from training.studies.work import run_trial


def test_a_full_disk_stops_the_other_runs_too(
    make_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop the other runs, which would continue for hours before the error is reported."""
    begun, run = threading.Event(), tmp_path / "run"
    run.write_text("#!/bin/sh\nexec sleep 600\n")
    run.chmod(0o755)
    write, first, second = write_whole, *Study.read(make_study()).trials()

    def full(file: Path, text: str) -> None:
        if file.parent == run_folder(second, tmp_path):
            assert begun.wait(PATIENCE)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        write(file, text)

    popen = subprocess.Popen

    def began(*arguments: Any, **how: Any) -> Any:
        process = popen(*arguments, **how)
        begun.set()
        return process

    monkeypatch.setattr(schedule, "write_whole", full)
    monkeypatch.setattr(subprocess, "Popen", began)
    monkeypatch.setattr(schedule, "sys", SimpleNamespace(executable=str(run), path=[]))
    with pytest.raises(OSError, match="No space left"):
        schedule.run_trials([first, second], tmp_path, io.StringIO(), Processes(), jobs=2)
    assert not is_finished(run_folder(first, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "missing", "without a task"])
def test_a_run_whose_arrays_are_damaged_is_the_one_that_is_carried_out_again(
    damage: str, make_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    file, out = make_study('[grid]\npooling = ["cls", "mean"]\n', untrained=True), tmp_path / "out"
    broken, whole = Study.read(file).trials()
    for trial in (broken, whole):
        done(trial, out)
    cosines = run_folder(broken, out) / COSINES_FILE
    before, array = load_arrays(cosines, COSINES, GOLDS), cosines.read_bytes()
    if damage == "truncated":
        cosines.write_bytes(array[: len(array) // 2])
    elif damage == "missing":
        cosines.unlink()
    else:
        save_arrays(cosines, {COSINES: {}, GOLDS: before[1]})
    again = []

    def here(_processes: object, trial: Trial, study: Path) -> None:
        again.append(trial.id)
        run_trial(run_folder(trial, study), io.StringIO())

    monkeypatch.setattr(Processes, "__call__", here)
    assert call("run", str(file), "--out", str(out)) == 0 and again == [broken.id]
    err = capsys.readouterr().err
    assert f"{cosines}: " in err and f"damaged, so {broken.title} is carried out again\n2 runs, 1 of them" in err
    for arrays, expected in zip(load_arrays(cosines, COSINES, GOLDS), before, strict=True):
        assert arrays.keys() == expected.keys()
    assert call("report", str(out), "--resamples", "10") == 0


@pytest.mark.parametrize("damaged", soon(["", '{"scores": ', "null", "[1]", "{}", "\xff"], "", "null"))
def test_a_damaged_result_is_none(
    damaged: str, make_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    file, out = make_study("", untrained=True), tmp_path / "out"
    (trial,) = Study.read(file).trials()
    result = done(trial, out)
    whole = result.read_text()
    result.write_bytes(damaged.encode("latin-1"))
    planned(file).save(out)
    assert call("status", str(out)) == 0 and "0 of 1 runs are finished" in capsys.readouterr().out

    def here(_processes: object, trial: Trial, study: Path) -> None:
        run_trial(run_folder(trial, study), io.StringIO())

    monkeypatch.setattr(Processes, "__call__", here)
    assert call("run", str(file), "--out", str(out)) == 0
    err = capsys.readouterr().err
    assert f"{result}: " in err and f"damaged, so {trial.title} is carried out again\n1 runs, 0 of them" in err
    assert json.loads(result.read_text())["scores"] == json.loads(whole)["scores"]
    assert len((out / RESULTS).read_text().splitlines()) == 1
