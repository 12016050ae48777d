"""Tests of two processes on the CPU, which must compute the same as one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.training.forks import two_together
from tests.training.gradients import compute
from training import run
from training.checkpoints.checkpoint import CheckpointError
from training.checkpoints.record import METRICS
from training.checkpoints.speed import FIGURES
from training.cli.options import parse
from training.config import ConfigError, RunConfig, from_preset
from training.machine.devices import Devices
from training.objectives import OBJECTIVES
from training.step import Step, initial_state

MakeConfig = Callable[..., RunConfig]
Fit = Callable[..., Any]


def described(config: RunConfig, folder: Path, name: str) -> str:
    file = folder / f"{name}.json"
    file.write_text(config.to_json())
    return str(file)


CASES = [*OBJECTIVES, "simcse in chunks", "dclr by an adapter"]


@pytest.fixture(scope="module")
def computed(tiny_backbone: Path, corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compute loss and gradients of every case with one and two processes: `<case>.<processes>.<rank>`."""
    folder = tmp_path_factory.mktemp("gradients")
    files = [Path(described(_without_chance(case, tiny_backbone, corpus_file), folder, case)) for case in CASES]
    compute(files)
    assert two_together(compute, files) == [0, 0]
    return folder


def _without_chance(case: str, backbone: Path, corpus: Path) -> RunConfig:
    """15 sentences, so that the processes have 7 and 8. Dropout is drawn on each apart: here there is none."""
    objective = case.split(maxsplit=1)[0]
    params = OBJECTIVES[objective].presets["minilm"].params
    params = replace(params, head=True) if hasattr(params, "head") else params
    if hasattr(params, "groups"):
        params = replace(params, groups=16, views=2)
    needs = OBJECTIVES[objective].build(params, 32).needs
    base = from_preset("simcse", backbone=str(backbone)).override(
        {
            "corpus": (str(corpus),),
            "batch_size": 15,
            "dropout": 0.0,
            "augmentation": "span-cutoff",
            "augmentation_rate": 0.0,
            "chunk_size": 4 if "chunks" in case else None,
            "adapter_rank": 4 if "adapter" in case else None,
            "layers": (1,) if objective == "static" else None,  # With all layers, the student equals its target.
            "teacher": str(backbone) if needs.teacher else None,
            "precision": "fp32",
            "device": "auto",
        }
    )
    return replace(base, objective=objective, params=params)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_of_two_processes_are_those_of_one(case: str, computed: Path) -> None:
    alone = load_file(computed / f"{case}.1.0")
    for rank in (0, 1):
        together = load_file(computed / f"{case}.2.{rank}")
        assert together.keys() == alone.keys() and len(alone) > 20
        for name, gradient in alone.items():
            torch.testing.assert_close(together[name], gradient, rtol=1e-6, atol=1e-9, msg=f"{name} of rank {rank}")


def logged(config: RunConfig) -> list[dict[str, Any]]:
    lines = map(json.loads, (Path(config.run) / METRICS).read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in FIGURES} for line in lines]


@pytest.mark.slow
def test_a_run_of_two_processes_leaves_one_record_and_one_bundle(make_config: MakeConfig, tmp_path: Path) -> None:
    # 228 sentences in batches of 114, and a teacher that is trained first. Dropout differs between processes.
    config = replace(
        make_config(max_steps=None, batch_size=114, eval_every=1, adapter_rank=4),
        objective="dclr",
        params=replace(OBJECTIVES["dclr"].presets["minilm"].params, head=True),
    )
    file = described(config, tmp_path, "config")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "training", "train", "--config", file, "--set", f"run={config.run}", "--out", config.out),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("self_retrieval_mrr10") == 1, "one process reports"
    assert done.stderr.count("4 steps of 64, fp32 on cpu x 2") == 1, "the teacher, once"
    assert done.stderr.count("2 steps of 114, fp32 on cpu x 2") == 1, "the student, once"
    assert [line["step"] for line in logged(config) if line["kind"] == "train"] == [1, 2]
    assert (Path(config.out) / "manifest.json").exists()
    assert (Path(config.run) / "adapter" / "adapter_config.json").exists()


def test_several_processes_do_not_look_for_a_free_folder(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    options = parse(["train", "--config", described(make_config(), tmp_path, "config")])
    with pytest.raises(ConfigError, match="--config with several processes needs --out"):
        options.load()(options)


def fit_until(file: Path, last: int, resume: bool) -> None:
    """Train a run whose process ends at step `last` as if killed."""
    torch.set_num_threads(1)
    step = Step.__call__

    def until_the_last(self: Step, *rest: Any) -> Any:
        if self._state.step == last:
            os._exit(9)
        return step(self, *rest)

    Step.__call__ = until_the_last  # type: ignore[assignment, method-assign]
    run.fit(RunConfig.from_json(file.read_text()), sys.stderr, resume=resume)


@pytest.mark.slow
def test_a_run_of_two_processes_is_taken_up_with_the_dropout_of_each(
    make_config: MakeConfig, fitted: Fit, tmp_path: Path
) -> None:
    whole, cut = (make_config(name, max_steps=8, eval_every=3, batch_size=15) for name in ("whole", "cut"))
    files = [Path(described(config, tmp_path, name)) for config, name in ((whole, "whole"), (cut, "cut"))]
    assert two_together(fit_until, files[0], 99, False) == [0, 0]
    assert two_together(fit_until, files[1], 5, False) == [9, 9]
    with pytest.raises(CheckpointError, match="the run started with 2 processes and can't resume with 1"):
        fitted(cut, resume=True)
    assert two_together(fit_until, files[1], 99, True) == [0, 0]
    assert logged(cut) == logged(whole)


def test_every_row_belongs_to_one_process_and_shares_differ_by_one() -> None:
    devices = Devices("cpu")
    for count, sentences in product((1, 2, 3, 8), (8, 17, 64)):
        devices.count, shares = count, []
        for rank in range(count):
            devices.rank = rank
            shares.append(devices.rows(sentences))
        assert [row for share in shares for row in share] == list(range(sentences))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_no_process_draws_as_another_one_or_as_one_of_another_seed() -> None:
    devices = Devices("cpu")
    drawn = {}
    for devices.rank, seed in product(range(8), range(20)):
        drawn[devices.rank, seed] = devices.own_seed(seed)
    assert len(set(drawn.values())) == len(drawn)
    assert [drawn[0, seed] for seed in range(20)] == list(range(20))


def test_a_batch_too_small_for_the_processes_is_refused(make_config: MakeConfig) -> None:
    devices = Devices("cpu")
    devices.count = 3
    with pytest.raises(ConfigError, match="batch_size: 2 leaves some of 3 processes without a sentence"):
        initial_state(make_config(batch_size=2), devices, None)


def test_a_device_that_is_named_by_its_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Select the device as the current one, because steps are recorded on the current device."""
    current: list[torch.device] = []
    monkeypatch.setattr("training.machine.devices.pick_device", torch.device)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    for name in ("cpu", "cuda", "cuda:1"):
        Devices(name)
    assert current == [torch.device("cuda:1")]
