"""Tests of `study run --on ray`: results equal those on one machine, also after kills and interruptions."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from models.errors import Refused
from tests.clusters import small_ray
from tests.training.studies.conftest import call
from tests.training.studies.test_schedule import interrupt_when, steps
from training.checkpoints.checkpoint import CHECKPOINT
from training.checkpoints.record import METRICS
from training.cli import main
from training.studies.description import Study
from training.studies.on_ray import carry_out, share
from training.studies.results import LOG, RESULTS, run_folder
from training.studies.work import RECORD

pytestmark = pytest.mark.filterwarnings("ignore")
MakeStudy = Callable[..., Path]
Capture = pytest.CaptureFixture[str]
ON_RAY = ("--on", "ray", "--threads", "1")
CPUS, GPUS = {"CPU": 16.0}, {"CPU": 64.0, "GPU": 8.0}


@pytest.fixture(scope="module")
def shared_ray() -> Iterator[None]:
    with small_ray():
        yield


def results(study: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (study / RESULTS).read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in ("seconds", "environment")} for line in lines]


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_results_are_those_of_one_machine_and_are_not_made_again(
    make_study: MakeStudy, tmp_path: Path, capsys: Capture
) -> None:
    file, here, there = make_study(), tmp_path / "here", tmp_path / "there"
    assert call("run", str(file), "--out", str(here)) == 0
    assert call("run", str(file), "--out", str(there), *ON_RAY) == 0
    assert results(here) == results(there) and len(results(there)) == 2
    assert call("run", str(file), "--out", str(there), *ON_RAY) == 0
    assert "2 runs, 2 of them finished before" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray", "listening_to_ctrl_c")
def test_two_runs_at_once_are_interrupted_and_go_on(make_study: MakeStudy, tmp_path: Path, capsys: Capture) -> None:
    file, out = make_study(max_steps=100_000, eval_every=100_000), tmp_path / "out"
    folders = [run_folder(trial, out) / RECORD for trial in Study.read(file).trials()]

    def steps_until_interrupted(before: Sequence[int]) -> list[int]:
        lines = list(zip(folders, before, strict=True))
        interrupting = interrupt_when(lambda: all(len(steps(folder / METRICS)) > least for folder, least in lines))
        assert call("run", str(file), "--out", str(out), *ON_RAY) == 130
        interrupting.join()
        assert capsys.readouterr().err.endswith("interrupted; the same command continues\n")
        assert all((folder / CHECKPOINT).exists() for folder in folders)
        return [len(steps(folder / METRICS)) for folder in folders]

    ended = steps_until_interrupted(steps_until_interrupted([0, 0]))
    assert all(steps(folder / METRICS) == list(range(1, last + 1)) for folder, last in zip(folders, ended, strict=True))


@pytest.mark.nightly
@pytest.mark.usefixtures("shared_ray")
def test_a_run_whose_worker_is_killed_goes_on(make_study: MakeStudy, tmp_path: Path) -> None:
    file, here, there = make_study("", max_steps=300, eval_every=50), tmp_path / "here", tmp_path / "there"
    (trial,) = Study.read(file).trials()
    folder = run_folder(trial, there)

    def kill() -> None:
        while len(steps(folder / RECORD / METRICS)) < 100:
            time.sleep(0.01)
        for process in psutil.Process().children(recursive=True):
            if "carry_out" in "".join(process.cmdline()):
                process.kill()

    killing = threading.Thread(target=kill)
    killing.start()
    assert call("run", str(file), "--out", str(there), *ON_RAY) == 0
    killing.join()
    assert "from step" in (folder / LOG).read_text()
    assert call("run", str(file), "--out", str(here)) == 0
    assert results(here) == results(there)


@pytest.mark.parametrize(
    ("nodes", "threads", "device", "expected"),
    [
        ([CPUS], None, "auto", (16, 0)),
        ([CPUS, {"CPU": 4.0}, {}], None, "auto", (4, 0)),
        ([CPUS], 2, "cpu", (2, 0)),
        ([CPUS, GPUS], None, "auto", (8, 1)),
        ([CPUS, GPUS], 2, "cuda", (2, 1)),
        ([CPUS, GPUS], None, "cpu", (16, 0)),
    ],
)
def test_a_run_has_a_gpu_or_cpus(nodes: list[Any], threads: int | None, device: str, expected: tuple[int, int]) -> None:
    cpus, gpus = expected
    assert share(nodes, threads=threads, device=device) == {"num_cpus": cpus, "num_gpus": gpus}


def test_a_cluster_that_is_too_small_is_an_error() -> None:
    with pytest.raises(Refused, match="needs 32 CPUs, and the largest node has 16"):
        share([CPUS, {"CPU": 4.0}], threads=32, device="auto")
    with pytest.raises(Refused, match="the largest node has 0"):
        share([{}], threads=None, device="auto")


def test_a_node_without_the_folder_is_named(make_study: MakeStudy, tmp_path: Path) -> None:
    trial, _ = Study.read(make_study()).trials()
    with pytest.raises(Refused, match="all nodes must share it"):
        carry_out(trial, Path("nowhere"), tmp_path)


@pytest.mark.parametrize("option", ["--threads", "--ray-address"])
def test_options_of_ray_need_ray(option: str, make_study: MakeStudy, tmp_path: Path, capsys: Capture) -> None:
    assert main(["study", "run", str(make_study()), "--out", str(tmp_path / "out"), option, "1"]) == 2
    assert f"{option} needs --on ray" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_no_cluster_at_the_address_leaves_nothing(
    make_study: MakeStudy, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    given = ["--on", "ray", "--ray-address", "127.0.0.1:1", "--out", str(tmp_path / "out")]
    assert main(["study", "run", str(make_study()), *given]) == 2
    said = capsys.readouterr().err
    assert "127.0.0.1:1: no cluster answers" in said and said.count("\n") == 1 and not (tmp_path / "out").exists()
