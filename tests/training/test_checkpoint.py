"""Tests of kills at any step: a resumed run ends like an uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from models.bundle.disk import error_line_and_status
from tests.training.conftest import Ended
from training.checkpoints.checkpoint import CheckpointError
from training.checkpoints.publish import Outcome
from training.checkpoints.record import Record, RunError
from training.checkpoints.speed import FIGURES
from training.config import RunConfig
from training.machine.hardware import autocast_dtype
from training.machine.interrupt import InterruptedRun
from training.machine.state_file import read_header, save_state
from training.step import Step

Fit = Callable[..., tuple[Outcome, str]]
MakeConfig = Callable[..., RunConfig]


class Killed(BaseException):
    """Exception for the end of the process, which nothing catches."""


def assert_same_end(one: RunConfig, other: RunConfig) -> None:
    """Check that last checkpoints and best weights are bit-identical, and that metrics of steps are equal."""
    for pattern in ("checkpoint.safetensors", "best-*.safetensors"):
        [a], [b] = (list(Path(config.run).glob(pattern)) for config in (one, other))
        assert a.name == b.name
        first, second = load_file(a), load_file(b)
        assert first.keys() == second.keys()
        assert [name for name in first if first[name].ne(second[name]).any()] == []
        with safe_open(a, framework="pt") as x, safe_open(b, framework="pt") as y:
            assert x.metadata() == y.metadata()
    assert logged(one) == logged(other)


def logged(config: RunConfig) -> list[dict[str, Any]]:
    lines = (Path(config.run) / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in FIGURES} for line in lines]


@pytest.fixture(scope="module")
def uninterrupted(ended: Ended) -> RunConfig:
    return ended.config


def some(every: Iterable[Any], *soon: Any) -> list[Any]:
    """Return all parameters, with those outside `soon` marked as slow."""
    return [one if one in soon else pytest.param(one, marks=pytest.mark.slow) for one in every]


BETWEEN = (2, 3, 7, 8, 12)
"""Steps that are not next to a checkpoint. Checkpoints are at every fifth step and at the end, step 14."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [
        *some(sorted({*range(1, 15)} - {*BETWEEN}), 1, 6),
        *(pytest.param(step, marks=pytest.mark.nightly) for step in BETWEEN),
    ],
)
def test_a_run_that_ends_abruptly_at_any_step_is_taken_up(
    step: int, uninterrupted: RunConfig, make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("cut")
    _end_after(step, config, fitted, monkeypatch)
    fitted(config, resume=True)
    assert_same_end(uninterrupted, config)


def _end_after(step: int, config: RunConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Record.write

    def write_until(self: Record, kind: str, at: int, values: Any) -> None:
        write(self, kind, at, values)
        if (kind, at) == ("train", step):
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Record, "write", write_until)
        fitted(config)


@pytest.mark.slow
@pytest.mark.parametrize("torn", some([b"\0" * 64, b"\xff\xfe\n", b"7\n", b'{"step": "x"}\n', b'{"ki'], b'{"ki'))
def test_metrics_that_power_loss_left_torn_are_cut_there(
    torn: bytes, uninterrupted: RunConfig, make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("cut")
    _end_after(5, config, fitted, monkeypatch)
    metrics = Path(config.run) / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + torn)
    fitted(config, resume=True)
    assert_same_end(uninterrupted, config)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\0" * 9, b""])
def test_a_damaged_configuration_is_named(content: bytes, make_config: MakeConfig, fitted: Fit) -> None:
    config = make_config(max_steps=1)
    fitted(config)
    (Path(config.run) / "config.json").write_bytes(content)
    with pytest.raises(RunError, match=r"^[^\n]*runs/one/config\.json: [^\n]+$"):
        fitted(config, resume=True)


def test_moments_in_another_order_are_refused(
    make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use one group for all weights, as without weight decay."""
    config = make_config(weight_decay=0.1)
    with monkeypatch.context() as patch:
        patch.setattr("training.step.adamw", lambda weights, **_: torch.optim.AdamW(weights, fused=True))
        fitted(replace(config, max_steps=1))
    with pytest.raises(
        CheckpointError, match=r"not a checkpoint of this run: the moments of weight \d+ have another weight's shape"
    ):
        fitted(config, resume=True)


def test_damaged_best_weights_are_named(copied: RunConfig, fitted: Fit) -> None:
    [best] = Path(copied.run).glob("best-*.safetensors")
    os.truncate(best, 1000)
    with pytest.raises(CheckpointError, match=r"best-\d+\.safetensors: not the best weights of this run"):
        fitted(copied, resume=True)


@pytest.mark.slow
def test_a_full_disk_names_the_file_and_the_run_goes_on_later(
    uninterrupted: RunConfig, make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("cut")

    def full(tensors: Any, file: Path, metadata: Any) -> None:
        file.write_bytes(b"as much as there was room for")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left") as caught:
        patch.setattr("training.machine.state_file.save_file", full)
        fitted(config)
    line, code = error_line_and_status(caught.value)
    assert line.startswith(f"{config.run}/best-00000000.safetensors: ") and code == 1
    assert not list(Path(config.run).glob("*.part"))
    fitted(config, resume=True)
    assert_same_end(uninterrupted, config)


@pytest.mark.slow
@pytest.mark.skipif(autocast_dtype("auto", torch.device("cpu")) is None, reason="this CPU does not multiply bfloat16")
def test_a_run_in_bf16_on_two_threads_is_taken_up(
    make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = (make_config(name, precision="bf16", max_steps=4, eval_every=2) for name in ("whole", "cut"))
    torch.set_num_threads(2)
    try:
        fitted(whole)
        _end_after(3, cut, fitted, monkeypatch)
        _, said = fitted(cut, resume=True)
    finally:
        torch.set_num_threads(1)
    assert "from step 2" in said and "bf16 on cpu" in said
    assert_same_end(whole, cut)


@pytest.mark.slow
@pytest.mark.parametrize("write", some(range(1, 9), 2))
def test_a_run_that_ends_while_a_file_is_written_is_taken_up(
    write: int, uninterrupted: RunConfig, make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("cut")
    writes = 0

    def half(tensors: Any, file: Path, metadata: Any) -> None:
        nonlocal writes
        save_file(tensors, file, metadata=metadata)
        writes += 1
        if writes == write:
            os.truncate(file, file.stat().st_size // 2)
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("training.machine.state_file.save_file", half)
        try:
            fitted(config)
        except Killed:
            fitted(config, resume=True)
    assert_same_end(uninterrupted, config)


def test_a_finished_run_resumes_to_the_same_end(copied: RunConfig, fitted: Fit) -> None:
    before = (Path(copied.run) / "checkpoint.safetensors").read_bytes()
    outcome, said = fitted(copied, resume=True)
    assert (Path(copied.run) / "checkpoint.safetensors").read_bytes() == before
    assert "from step 14" in said and outcome.best.step <= 14


@pytest.mark.slow
def test_sigkill_before_and_after_a_checkpoint(uninterrupted: RunConfig, make_config: MakeConfig, fitted: Fit) -> None:
    _kill_and_compare(uninterrupted, make_config("cut"), fitted, steps=[3, 12])


@pytest.mark.nightly
def test_sigkill_at_many_random_steps(make_config: MakeConfig, fitted: Fit) -> None:
    whole = make_config("whole", max_steps=200)
    fitted(whole)
    steps = sorted(random.sample(range(1, 200), 8))
    _kill_and_compare(whole, make_config("cut", max_steps=200), fitted, steps=steps)


def _kill_and_compare(whole: RunConfig, config: RunConfig, fitted: Fit, *, steps: list[int]) -> None:
    """Kill the run's process at each of these steps, and then let it end."""
    for i, step in enumerate(steps):
        _run_and_kill(config, at=step, resume=i > 0)
    fitted(config, resume=True)
    assert_same_end(whole, config)


def _run_and_kill(config: RunConfig, *, at: int, resume: bool) -> None:
    Path(config.run).parent.mkdir(parents=True, exist_ok=True)
    described = Path(config.run).with_suffix(".json")
    described.write_text(config.to_json())
    metrics = Path(config.run) / "metrics.jsonl"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(described), str(resume)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
    )
    try:
        while not (metrics.exists() and f'"train", "step": {at},' in metrics.read_text()):
            assert child.poll() is None, child.stderr.read().decode() if child.stderr else ""
            time.sleep(0.002)
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert child.returncode == -signal.SIGKILL


CHILD = """
import sys, time
from pathlib import Path
import torch
from training import run
from training.config import RunConfig
from training.checkpoints.record import Record

torch.set_num_threads(1)
write = Record.write
def slowly(self, kind, step, values):  # so that the kill comes at the step it is meant for, or soon after
    write(self, kind, step, values)
    time.sleep(0.02)
Record.write = slowly
run.fit(RunConfig.from_json(Path(sys.argv[1]).read_text()), sys.stderr, resume=sys.argv[2] == "True")
"""


def test_a_changed_corpus_is_refused(
    make_config: MakeConfig, fitted: Fit, sentences: list[str], tmp_path: Path
) -> None:
    corpus = tmp_path / "mine.txt"
    corpus.write_text("\n".join(sentences))
    config = make_config(corpus=(str(corpus),), max_steps=2)
    fitted(config)
    corpus.write_text("\n".join([*sentences, "one more sentence ."]))
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors: the corpus has changed"):
        fitted(config, resume=True)


def test_changed_dev_data_is_refused(make_config: MakeConfig, fitted: Fit, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("sentence1,sentence2,score\nA dog .,A cat .,1\nThe man .,A woman .,2\n")
    config = make_config(dev_data=str(pairs), max_steps=2)
    fitted(config)
    _, said = fitted(config, resume=True)
    assert "from step 2" in said
    pairs.write_text(pairs.read_text().replace("woman .,2", "woman .,0"))
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors: the data of --dev-data changed .* or remove "):
        fitted(config, resume=True)
    file = Path(config.run) / "checkpoint.safetensors"
    facts = read_header(file)
    del facts["inputs"]
    save_state(file, load_file(file), facts)
    fitted(config, resume=True)  # Checkpoints of earlier versions have no digests.


def test_a_damaged_checkpoint_is_named(copied: RunConfig, fitted: Fit) -> None:
    file = Path(copied.run) / "checkpoint.safetensors"
    os.truncate(file, 1000)
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors: not a checkpoint of this run"):
        fitted(copied, resume=True)


def test_a_checkpoint_of_another_objective_is_refused(copied: RunConfig, fitted: Fit) -> None:
    other = replace(copied, params=replace(copied.params, head=False))
    with pytest.raises(CheckpointError, match="not a checkpoint of this run"):
        fitted(other, resume=True)


@pytest.mark.slow
@pytest.mark.usefixtures("listening_to_ctrl_c")
def test_ctrl_c_saves_the_step_it_stops_at(
    uninterrupted: RunConfig, make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("cut")
    step = Step.__call__

    def step_then_interrupt(self: Step, *rest: Any) -> Any:
        if self._state.step == 6:
            signal.raise_signal(signal.SIGINT)
        return step(self, *rest)

    with monkeypatch.context() as patch, pytest.raises(InterruptedRun, match="stopped after step 7 of 14"):
        patch.setattr(Step, "__call__", step_then_interrupt)
        fitted(config)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    _, said = fitted(config, resume=True)
    assert "from step 7" in said
    assert_same_end(uninterrupted, config)
