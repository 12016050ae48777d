"""A study in processes of its own: what fails, what is interrupted, and what is then not done again."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.study.conftest import call
from training.lock import LockError, locked
from training.loop import InterruptedRun
from training.record import METRICS, write_whole
from training.study.description import Study
from training.study.plan import Plan
from training.study.results import RESULT, RESULTS, TRIAL, finished, folder_of
from training.study.trial import StudyError, Trial
from training.study.work import RECORD, carry_out

MakeStudy = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


def done(trial: Trial, study: Path) -> Path:
    """The result of a run that is carried out here and now."""
    folder = folder_of(trial, study)
    folder.mkdir(parents=True)
    write_whole(folder / TRIAL, trial.to_json())
    carry_out(folder, io.StringIO())
    return folder / RESULT


def steps(file: Path) -> list[int]:
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line["step"] for line in lines if line["kind"] == "train"]


def interrupt_when(condition: Callable[[], bool]) -> threading.Thread:
    """Ctrl-C in this process, once."""

    def wait() -> None:
        for _ in range(60_000):
            if condition():
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.001)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.usefixtures("listening_to_ctrl_c")
def test_an_interrupted_run_goes_on(make_study: MakeStudy, tmp_path: Path) -> None:
    (trial,) = Study.read(make_study("", max_steps=120, eval_every=100)).trials()
    metrics = folder_of(trial, tmp_path) / RECORD / METRICS
    interrupting = interrupt_when(lambda: bool(steps(metrics)))
    with pytest.raises(InterruptedRun):
        done(trial, tmp_path)
    interrupting.join()
    until = len(steps(metrics))
    assert 0 < until < 120 and not finished(trial, tmp_path)
    said = io.StringIO()
    carry_out(folder_of(trial, tmp_path), said)
    assert finished(trial, tmp_path) and f"from step {until}" in said.getvalue()
    assert steps(metrics) == list(range(1, 121))


@pytest.mark.slow
@pytest.mark.usefixtures("listening_to_ctrl_c")
def test_an_interrupted_study_goes_on_and_repeats_nothing(
    make_study: MakeStudy, tmp_path: Path, capsys: Capture
) -> None:
    file = make_study("[grid]\nseed = [0, 1]\n", max_steps=120, eval_every=100)
    out = tmp_path / "out"
    first, second = Study.read(file).trials()
    before = done(first, out).stat()
    metrics = folder_of(second, out) / RECORD / METRICS

    interrupting = interrupt_when(lambda: bool(steps(metrics)))
    assert call("run", str(file), "--out", str(out)) == 130
    interrupting.join()
    until = len(steps(metrics))
    assert 0 < until < 120 and not (folder_of(second, out) / RESULT).exists()
    assert len((out / RESULTS).read_text().splitlines()) == 1
    assert capsys.readouterr().err.endswith("interrupted; the same command goes on\n")
    assert call("status", str(out)) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{first.id}  all, seed 0: finished",
        f"{second.id}  all, seed 1: stopped after step {until}, its log is {folder_of(second, out) / 'log.txt'}",
        "1 of 2 runs are finished",
    ]

    assert call("run", str(file), "--out", str(out)) == 0
    assert "2 runs, 1 of them finished before\n1/1 all, seed 1: done" in capsys.readouterr().err
    after = (folder_of(first, out) / RESULT).stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert steps(metrics) == list(range(1, 121)), "taken up where it was left"
    assert f"from step {until}" in (folder_of(second, out) / "log.txt").read_text()
    assert [json.loads(line)["id"] for line in (out / RESULTS).read_text().splitlines()] == [first.id, second.id]
    assert call("run", str(file), "--out", str(out)) == 0, "nothing is left to do, and nothing is started"
    assert "2 runs, 2 of them finished before" in capsys.readouterr().err


@pytest.mark.slow
def test_a_failed_run_is_reported_and_the_others_go_on(
    make_study: MakeStudy, tiny_backbone: Path, tmp_path: Path, capsys: Capture
) -> None:
    arms = f'[grid]\nbackbone = ["{tmp_path}/nowhere", "{tiny_backbone}"]\n'
    file, out = make_study(arms, untrained=True, backbone=None), tmp_path / "out"
    assert call("run", str(file), "--out", str(out), "--jobs", "2") == 1
    said, err = capsys.readouterr()
    broken, sound = Study.read(file).trials()
    assert said == f"{out / RESULTS}: 1 runs failed\n"
    assert f"{broken.title} ({broken.id}) failed; the end of {folder_of(broken, out) / 'log.txt'}:" in err
    assert "SourceError" in err and f"{sound.title}: done ({sound.id})" in err
    (line,) = map(json.loads, (out / RESULTS).read_text().splitlines())
    assert line["id"] == sound.id and line["axes"] == {"backbone": str(tiny_backbone)}
    assert Counter(path.name for path in out.rglob("result.json")) == {"result.json": 1}


def test_what_would_stop_every_run_stops_the_study_first(make_study: MakeStudy, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(StudyError, match="eval_data: a study judges by"):
        call("run", str(make_study(eval_data=None)), "--out", str(out))
    with pytest.raises(ValueError, match=r"sts-dev\.csv"):
        call("run", str(make_study(eval_data=None)), "--out", str(out), "--data", str(tmp_path / "nowhere"))
    with pytest.raises(StudyError, match=r"corpus: nowhere\.txt is no file"):
        call("run", str(make_study(corpus=None)), "--out", str(out), "--corpus", "nowhere.txt")
    assert not out.exists()
    with locked(out), pytest.raises(LockError, match="another process is at work there"):
        call("run", str(make_study()), "--out", str(out))


def test_the_plan_is_kept_and_its_runs_wait(make_study: MakeStudy, tmp_path: Path, capsys: Capture) -> None:
    file = make_study()
    plan = Plan.of(Study.read(file))
    with pytest.raises(StudyError, match=r"study\.json: No such file or directory; `study run` writes it"):
        call("status", str(tmp_path))
    plan.keep(tmp_path)
    assert Plan.kept(tmp_path) == plan
    assert call("status", str(file), "--out", str(tmp_path)) == 0
    assert capsys.readouterr().out.count(": waiting\n") == 2
    (tmp_path / "study.json").write_text('{"name": "x"}')
    with pytest.raises(StudyError, match=r"study\.json: 'trials'"):
        call("status", str(tmp_path))
