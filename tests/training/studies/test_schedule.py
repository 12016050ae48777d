"""Tests of a study's processes: failures, interruptions, and work that is not repeated."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest

from models.bundle.disk import write_whole
from tests.conftest import PATIENCE
from tests.training.studies.conftest import call, planned
from training.checkpoints.checkpoint import CHECKPOINT
from training.checkpoints.record import METRICS
from training.cli import main
from training.evaluation.pairs import DataError
from training.machine.interrupt import InterruptedRun, LockError, locked
from training.studies.description import Study
from training.studies.plan import Plan
from training.studies.results import LOG, RESULT, RESULTS, TRIAL, is_finished, run_folder
from training.studies.schedule import LOCKED_ELSEWHERE, Processes, is_locked
from training.studies.trial import StudyError, Trial
from training.studies.work import RECORD, run_trial

MakeStudy = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


def done(trial: Trial, study: Path) -> Path:
    """Carry out a run here, and return its result."""
    folder = run_folder(trial, study)
    folder.mkdir(parents=True)
    write_whole(folder / TRIAL, trial.to_json())
    run_trial(folder, io.StringIO())
    return folder / RESULT


def steps(file: Path) -> list[int]:
    """Return the steps in the metrics of a run, which may be in the middle of writing a line."""
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    lines = [json.loads(line) for line in whole.splitlines()]
    return [line["step"] for line in lines if line["kind"] == "train"]


def interrupt_when(condition: Callable[[], bool]) -> threading.Thread:
    """Send Ctrl-C to this process, once."""

    def wait() -> None:
        deadline = time.monotonic() + 5 * PATIENCE
        while time.monotonic() < deadline:
            if condition():
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.001)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.usefixtures("listening_to_ctrl_c")
def test_an_interrupted_run_goes_on(make_study: MakeStudy, tmp_path: Path) -> None:
    (trial,) = Study.read(make_study("", max_steps=120, eval_every=100)).trials()
    metrics = run_folder(trial, tmp_path) / RECORD / METRICS
    interrupting = interrupt_when(lambda: bool(steps(metrics)))
    with pytest.raises(InterruptedRun):
        done(trial, tmp_path)
    interrupting.join()
    until = len(steps(metrics))
    assert 0 < until < 120 and not is_finished(run_folder(trial, tmp_path))
    said = io.StringIO()
    run_trial(run_folder(trial, tmp_path), said)
    assert is_finished(run_folder(trial, tmp_path)) and f"from step {until}" in said.getvalue()
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
    metrics = run_folder(second, out) / RECORD / METRICS

    interrupting = interrupt_when(lambda: bool(steps(metrics)))
    assert call("run", str(file), "--out", str(out)) == 130
    interrupting.join()
    until = len(steps(metrics))
    assert 0 < until < 120 and not (run_folder(second, out) / RESULT).exists()
    assert len((out / RESULTS).read_text().splitlines()) == 1
    assert capsys.readouterr().err.endswith("interrupted; the same command continues\n")
    assert call("status", str(out)) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{first.id}  all, seed 0: finished",
        f"{second.id}  all, seed 1: stopped after step {until}, its log is {run_folder(second, out) / 'log.txt'}",
        "1 of 2 runs are finished",
    ]

    assert call("run", str(file), "--out", str(out)) == 0
    assert "2 runs, 1 of them finished before\n1/1 all, seed 1: done" in capsys.readouterr().err
    after = (run_folder(first, out) / RESULT).stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert steps(metrics) == list(range(1, 121)), "taken up where it was left"
    assert f"from step {until}" in (run_folder(second, out) / "log.txt").read_text()
    assert [json.loads(line)["id"] for line in (out / RESULTS).read_text().splitlines()] == [first.id, second.id]
    assert call("run", str(file), "--out", str(out)) == 0, "nothing is left to do, and nothing is started"
    assert "2 runs, 2 of them finished before" in capsys.readouterr().err


@pytest.mark.slow
def test_a_failed_run_is_reported_and_the_others_go_on(
    make_study: MakeStudy, tiny_backbone: Path, tmp_path: Path, capsys: Capture
) -> None:
    copytree(tiny_backbone, tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"")
    arms = f'[grid]\nbackbone = ["{tmp_path}/broken", "{tiny_backbone}"]\n'
    file, out = make_study(arms, untrained=True, backbone=None), tmp_path / "out"
    assert call("run", str(file), "--out", str(out), "--jobs", "2") == 1
    said, err = capsys.readouterr()
    broken, sound = Study.read(file).trials()
    assert said == f"{out / RESULTS}: 1 runs failed\n"
    assert f"{broken.title} ({broken.id}) failed; the end of {run_folder(broken, out) / 'log.txt'}:" in err
    assert "SourceError" in err and f"{sound.title}: done ({sound.id})" in err
    (line,) = map(json.loads, (out / RESULTS).read_text().splitlines())
    assert line["id"] == sound.id and line["axes"] == {"backbone": str(tiny_backbone)}
    assert Counter(path.name for path in out.rglob("result.json")) == {"result.json": 1}


@pytest.mark.parametrize(("option", "put"), [("--corpus", 'corpus=["other.txt"]'), ("--data", "eval_data=other")])
def test_what_is_set_and_has_an_option_that_is_given_is_refused(
    option: str, put: str, make_study: MakeStudy, tmp_path: Path, capsys: Capture
) -> None:
    given = ["--set", put, option, "one"]
    assert main(["study", "run", str(make_study("")), "--out", str(tmp_path / "out"), *given]) == 2
    assert f"--set {put.partition('=')[0]}: {option} sets the same field" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_would_stop_every_run_stops_the_study_first(
    make_study: MakeStudy, stsb_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(StudyError, match="eval_data: a study needs"):
        call("run", str(make_study(eval_data=None)), "--out", str(out))
    with pytest.raises(ValueError, match="STSBenchmark: no such folder"):
        call("run", str(make_study(eval_data=None)), "--out", str(out), "--data", str(tmp_path / "nowhere"))
    with pytest.raises(StudyError, match=r"corpus: nowhere\.txt is not a file"):
        call("run", str(make_study(corpus=None)), "--out", str(out), "--corpus", "nowhere.txt")
    with pytest.raises(StudyError, match=r"artifacts/nothing: no such folder"):
        call("run", str(make_study(backbone="artifacts/nothing")), "--out", str(out))
    data = tmp_path / "data"
    copytree(stsb_data, data)
    (data / "SICK").mkdir()
    (data / "SICK" / "SICK_test_annotated.txt").write_text("one\ttwo\n1\ta dog\n")
    with pytest.raises(DataError, match=r"SICK_test_annotated\.txt:2: 2 columns"):
        call("run", str(make_study()), "--out", str(out), "--data", str(data))
    assert not out.exists()
    with locked(out), pytest.raises(LockError, match="another process is using this folder"):
        call("run", str(make_study()), "--out", str(out))


def test_a_study_that_is_only_named_is_run(make_study: MakeStudy, tmp_path: Path, capsys: Capture) -> None:
    file, out = make_study("[grid]\nseed = [0]\n", eval_data=None), tmp_path / "out"
    for given in (["study", str(file)], ["study", "run", str(file)]):
        assert main([*given, "--out", str(out)]) == 2
        assert "eval_data: a study needs" in capsys.readouterr().err
    assert main(["study", "status", str(file), "--out", str(out)]) == 2, "the other commands are as they were"
    assert "`study run` writes it" in capsys.readouterr().err


def test_the_plan_is_kept_and_its_runs_wait(make_study: MakeStudy, tmp_path: Path, capsys: Capture) -> None:
    file = make_study()
    plan = planned(file)
    with pytest.raises(StudyError, match=r"study\.json: No such file or directory; `study run` writes it"):
        call("status", str(tmp_path))
    plan.save(tmp_path)
    assert Plan.load(tmp_path) == plan
    assert call("status", str(file), "--out", str(tmp_path)) == 0
    assert capsys.readouterr().out.count(": waiting\n") == 2
    (tmp_path / "study.json").write_text('{"name": "x"}')
    with pytest.raises(StudyError, match=r"study\.json: 'trials'"):
        call("status", str(tmp_path))


def until(condition: Callable[[], bool]) -> None:
    """Wait for the condition, at most a minute."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to that within a minute")


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.nightly),  # test_stopping.py has a run whose parent has ended.
    ],
)
def test_a_study_that_is_ended_takes_its_runs_with_it(
    how: signal.Signals, make_study: MakeStudy, tmp_path: Path, capsys: Capture
) -> None:
    """Start the study with Ctrl-C ignored, as nohup and scripts do. Its status can be read while it runs."""
    file, out = make_study("", max_steps=5000, eval_every=5000), tmp_path / "out"
    (trial,) = Study.read(file).trials()
    folder = run_folder(trial, out)
    command = [sys.executable, "-m", "training", "study", "run", str(file), "--out", str(out)]
    with subprocess.Popen(["/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command]) as process:
        until(lambda: len(steps(folder / RECORD / METRICS)) > 0)
        assert call("status", str(out)) == 0
        assert capsys.readouterr().out.splitlines()[0].endswith(": at work")
        process.send_signal(how)
    assert process.returncode == (130 if how is signal.SIGTERM else -signal.SIGKILL)
    until(lambda: not is_locked(folder))
    taken = len(steps(folder / RECORD / METRICS))
    assert 0 < taken < 5000 and f"stopped after step {taken} of 5000" in (folder / LOG).read_text()
    assert (folder / RECORD / CHECKPOINT).exists(), "it has saved itself"
    assert call("status", str(out)) == 0
    assert f": stopped after step {taken}, " in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_another_process_is_at_has_not_failed(
    make_study: MakeStudy, tmp_path: Path, capsys: Capture
) -> None:
    file, out = make_study("", untrained=True), tmp_path / "out"
    (trial,) = Study.read(file).trials()
    with locked(run_folder(trial, out)):
        assert call("run", str(file), "--out", str(out)) == 1
    said, err = capsys.readouterr()
    assert said == f"{out / RESULTS}: 1 runs are active in other processes\n"
    assert f"1/1 {trial.title} ({trial.id}): active in another process\n" in err and "failed" not in err


def test_exit_codes_say_why_there_is_no_result(
    make_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    file, out = make_study("[grid]\nseed = [0, 1, 2]\n"), tmp_path / "out"
    codes = iter([LOCKED_ELSEWHERE, 1, -signal.SIGKILL])

    class Ended:
        """A process that has ended."""

        def __init__(self, *_arguments: object, **_options: object) -> None:
            self.code = next(codes)

        def wait(self) -> int:
            return self.code

    monkeypatch.setattr(subprocess, "Popen", Ended)
    assert call("run", str(file), "--out", str(out)) == 1
    said, err = capsys.readouterr()
    assert said == f"{out / RESULTS}: 2 runs failed, 1 runs are active in other processes\n"
    first, second, third = Study.read(file).trials()
    assert f"({first.id}): active in another process\n" in err and f"({second.id}) failed; the end of" in err
    assert f"({third.id}) was killed by signal 9; the end of" in err


def test_a_run_is_at_work_while_its_lock_is_held(make_study: MakeStudy, tmp_path: Path, capsys: Capture) -> None:
    plan = planned(make_study(""))
    plan.save(tmp_path)
    with locked(run_folder(plan.trials[0], tmp_path)):
        assert call("status", str(tmp_path)) == 0
        assert ": at work\n" in capsys.readouterr().out
    assert call("status", str(tmp_path)) == 0
    assert ": stopped after step 0, " in capsys.readouterr().out


def test_a_module_of_the_working_directory_is_not_run_instead_of_a_run(
    make_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("own", "project"):
        package = tmp_path / folder / "training" / "studies"
        package.mkdir(parents=True)
        for file in (package.parent / "__init__.py", package / "__init__.py"):
            file.touch()
        (package / "__main__.py").write_text(f"raise SystemExit('run from {folder}')")
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path / "project")
    trial = Study.read(make_study()).trials()[0]
    assert "run from own" in str(Processes()(trial, tmp_path / "out"))
