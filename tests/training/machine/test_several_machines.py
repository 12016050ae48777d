"""Tests of two machines that train together: launchers at two loopback addresses, connected by gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import PATIENCE
from tests.training.forks import two_together
from training import run
from training.checkpoints.checkpoint import CHECKPOINT
from training.checkpoints.record import METRICS
from training.checkpoints.speed import FIGURES
from training.config import RunConfig

MakeConfig = Callable[..., RunConfig]
Fit = Callable[..., Any]
ADDRESSES = ("127.0.0.2", "127.0.0.3")
STEPS, EVERY = 60, 10


def torchrun(machine: int, port: int) -> list[str]:
    return [
        *("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"),
        *(f"--rdzv-endpoint={ADDRESSES[0]}:{port}", f"--local-addr={ADDRESSES[machine]}"),
    ]


def accelerate(machine: int, port: int) -> list[str]:
    return [
        *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines=2", "--num_processes=2"),
        *(f"--machine_rank={machine}", f"--main_process_ip={ADDRESSES[0]}", f"--main_process_port={port}"),
        *("--mixed_precision=no", "--dynamo_backend=no"),
    ]


class Machine:
    """A launcher with its process of the run."""

    def __init__(self, launcher: list[str], command: list[str], said: Path) -> None:
        known = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
        self._said = said
        with said.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, *launcher, *command], env=os.environ | known, stdout=subprocess.DEVNULL, stderr=file
            )

    def ended(self) -> tuple[int, str]:
        """Wait for the end, and return the exit code and stderr."""
        return self._process.wait(5 * PATIENCE), self._said.read_text()

    def turn_off(self) -> None:
        parent = psutil.Process(self._process.pid)
        for process in (*parent.children(recursive=True), parent):
            process.kill()
        self._process.wait()


def launch(
    launcher: Callable[[int, int], list[str]], config: RunConfig, folder: Path, *more: str
) -> tuple[Machine, Machine]:
    """Start the same command on both machines."""
    file = folder / "config.json"
    file.write_text(config.to_json())
    with socket.create_server((ADDRESSES[0], 0)) as free:
        port = free.getsockname()[1]
    train = ["-m", "training", "train", "--config", str(file), "--set", f"run={config.run}", "--out", config.out, *more]
    one, two = (Machine(launcher(each, port), train, folder / f"said-{each}") for each in (0, 1))
    return one, two


def succeed(machines: tuple[Machine, Machine], says: str) -> None:
    """Wait for the end. The first process of the run reports, and it can be on either machine."""
    codes, said = zip(*(each.ended() for each in machines), strict=True)
    assert codes == (0, 0) and says in "".join(said), said


def logged(config: RunConfig) -> list[dict[str, Any]]:
    file = Path(config.run) / METRICS
    lines = map(json.loads, file.read_text().splitlines() if file.exists() else [])
    return [{name: value for name, value in line.items() if name not in FIGURES} for line in lines]


@pytest.fixture
def same_everywhere(make_config: MakeConfig) -> Callable[[str], RunConfig]:
    """Return runs without dropout, whose masks differ between processes. Batches of 15 are divided into 7 and 8."""

    def make(name: str) -> RunConfig:
        config = make_config(name, max_steps=STEPS, eval_every=EVERY, batch_size=15)
        return replace(config, dropout=0.0, augmentation="span-cutoff", augmentation_rate=0.0)

    return make


@pytest.mark.slow
def test_two_machines_train_as_one_and_go_on_after_one_was_turned_off(
    same_everywhere: Callable[[str], RunConfig], fitted: Fit, tmp_path: Path
) -> None:
    alone, together, cut = (same_everywhere(name) for name in ("alone", "together", "cut"))
    fitted(alone)
    succeed(launch(accelerate, together, tmp_path), "fp32 on cpu x 2")
    assert (Path(together.out) / "manifest.json").exists()
    for ours, theirs in zip(logged(alone), logged(together), strict=True):
        assert theirs.pop("kind") == ours.pop("kind")
        assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-5), "loss, gradient norm and scores of each step"

    one, two = launch(torchrun, cut, tmp_path)
    deadline = time.monotonic() + 5 * PATIENCE
    while len(logged(cut)) < STEPS // 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    two.turn_off()
    code, said = one.ended()
    assert code and "another process of this run has ended; resume with the same command and --resume" in said, said
    assert (Path(cut.run) / CHECKPOINT).exists() and not Path(cut.out).exists()
    succeed(launch(torchrun, cut, tmp_path, "--resume"), "from step")
    assert logged(cut) == logged(together)


def fit_in(file: Path, folders: list[str]) -> None:
    """Train a run whose folder differs between the machines."""
    config = RunConfig.from_json(file.read_text())
    run.fit(replace(config, run=folders[int(os.environ["RANK"])]), sys.stderr)


@pytest.mark.slow
def test_machines_that_do_not_share_the_folder_are_told(make_config: MakeConfig, tmp_path: Path) -> None:
    file, heard = tmp_path / "config.json", tmp_path / "said"
    file.write_text(make_config().to_json())
    assert two_together(fit_in, file, [str(tmp_path / "one"), str(tmp_path / "two")], said=heard) == [1, 1]
    assert "some machines do not see this folder" in heard.read_text()
