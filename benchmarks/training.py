"""Training steps per second of every objective, compared with the published loop and sentence-transformers."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, islice
from typing import Any

import torch

from benchmarks.interleave import interleaved, rates, seconds_of
from benchmarks.loops import LENGTH, PEERS
from models.bundle.sources import resolve
from models.encoder.encoder import Encoder
from training.checkpoints.speed import OperationCount, matmul_peak
from training.config import RunConfig, from_preset
from training.data.batches import Batch, tokeniser
from training.data.corpus import open_corpus
from training.machine.devices import Devices
from training.machine.hardware import autocast_dtype
from training.machine.memory import reuse_memory
from training.objectives.base import Needs
from training.step import initial_state, load_frozen, make_step

BATCH, ROUNDS, WARMUP = 64, 20, 3
BACKBONE = "minilm"
CPU = torch.device("cpu")

OURS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "simcse_fp32": ("simcse", {"precision": "fp32"}, {}),
    "simcse": ("simcse", {}, {}),
    "simcse_adapter": ("simcse", {"adapter_rank": 8}, {}),
    "gs-infonce": ("gs-infonce", {}, {}),
    "dclr": ("dclr", {}, {}),
    "whitenedcse": ("whitenedcse", {}, {}),
    "whitenedcse_2_views": ("whitenedcse", {}, {"views": 2}),
    "imsimcse": ("imsimcse", {}, {}),
}
"""Contestants by name: the objective, changed fields of the run's configuration, and changed parameters of the
objective."""


def measure() -> dict[str, Any]:
    """Measure complete steps (tokens, forward, backward, clip, AdamW): 64 sentences of at most 32 tokens."""
    names = (*PEERS, *OURS)
    with ExitStack() as running:
        processes = {name: running.enter_context(_process(name, _batches())) for name in names}
        seconds = interleaved(
            {name: partial(seconds_of, partial(_step, process)) for name, process in processes.items()}, ROUNDS, WARMUP
        )
        memory = {name: _last_words(process) for name, process in processes.items()}
    against = {peer: rates(seconds, BATCH, peer) for peer in PEERS}
    return {
        "setting": (
            f"{BACKBONE}, [CLS], batch {BATCH}, {LENGTH} tokens at most, CPython's documentation, "
            f"{'bf16' if 'bf16' in _types() else 'fp32'} where not said otherwise; {ROUNDS} interleaved rounds of one "
            "step, each contestant in a process of its own; published: transformers, fp32, sdpa, "
            "padded to the longest; sentence_transformers: a step of MultipleNegativesRankingLoss on (text, text), "
            "fp32; tokens and operations are useful ones, padding is not counted"
        ),
        "figures": {
            "peak_flops_per_s": {name: f"{matmul_peak(CPU, dtype):.3g}" for name, dtype in _types().items()},
            "contestants": {
                name: {
                    "sentences_per_s": against["published"][name]["per_second"],
                    **{f"times_{peer}": against[peer][name][f"times_{peer}"] for peer in PEERS},
                    "step_over_simcse": _ratio(seconds[name], seconds["simcse"]),
                    **_work(name, statistics.median(seconds[name])),
                    "peak_memory_mb": memory[name],
                }
                for name in names
            },
        },
    }


def contestant(name: str, batches: Sequence[Sequence[str]]) -> Callable[[], None]:
    """Return a function that takes one training step per call. It uses the batches in turn, repeatedly."""
    texts = cycle(batches)
    return _ours(name, texts) if name in OURS else PEERS[name](texts, resolve(BACKBONE), "cpu")


@cache
def _batches() -> list[list[str]]:
    return list(islice(open_corpus([], held_out=0).batches(BATCH, seed=0), ROUNDS + WARMUP))


def _config(name: str) -> RunConfig:
    objective, run, params = OURS[name]
    config = from_preset(objective, backbone=BACKBONE).override(
        {"pooling": "cls", "head": True, "device": "cpu", **run}
    )
    return replace(config, params=replace(config.params, **params))


def _ours(name: str, texts: Iterator[Sequence[str]]) -> Callable[[], None]:
    """Return the training step of one of our objectives. If it needs a teacher, the backbone is the teacher."""
    config, devices = _config(name), Devices("cpu")
    autocast = autocast_dtype(config.precision, CPU)
    state = initial_state(config, devices, autocast)
    state.encoder.train()
    teacher = load_frozen(BACKBONE, devices) if state.objective.needs.teacher else None
    if teacher is not None:
        teacher.pooling = state.encoder.pooling
    step = make_step(config, state, devices, teacher, autocast)
    tokenise: Callable[[Sequence[str]], Batch] = tokeniser(state.encoder, teacher, max_length=LENGTH, own=devices.rows)

    def take() -> None:
        step(tokenise(next(texts)), 3e-5)["loss"].item()

    return take


def _ratio(seconds: Sequence[float], reference: Sequence[float]) -> float:
    return round(statistics.median(own / theirs for own, theirs in zip(seconds, reference, strict=True)), 2)


def _work(name: str, seconds: float) -> dict[str, float]:
    """Return tokens and operations per second, and the fraction of the peak speed in the contestant's precision."""
    encoder = Encoder.load(BACKBONE)
    lengths = [[min(len(tokens), LENGTH) for tokens in encoder.tokenizer.encode(batch)] for batch in _batches()]
    needs, precision, work = Needs(), "fp32", OperationCount.of(encoder)
    if name in OURS:
        config = _config(name)
        state = initial_state(config, Devices("cpu"), None)
        needs, work = state.objective.needs, OperationCount.of(state.encoder)
        precision = "fp32" if config.precision == "fp32" else "bf16"
    passes = needs.views + needs.clean
    operations = statistics.mean(
        passes * work.training(batch) + needs.teacher * work.forward(batch) for batch in lengths
    )
    peak = matmul_peak(CPU, _types().get(precision, torch.float32))
    return {
        "tokens_per_s": round(statistics.mean(map(sum, lengths)) * passes / seconds),
        "gflops_per_s": round(operations / seconds / 1e9, 1),
        "utilisation": round(operations / seconds / peak, 2),
    }


def _types() -> dict[str, torch.dtype]:
    """Return the dtypes in which the contestants compute on this machine."""
    auto = autocast_dtype("auto", CPU)
    return {"fp32": torch.float32} | ({"bf16": auto} if auto else {})


def _process(name: str, batches: Sequence[Sequence[str]]) -> subprocess.Popen[str]:
    """Start the contestant in a process of its own, as its users run it, with its own threads and heap."""
    command = [sys.executable, "-m", "benchmarks.training", name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    _tell(process, json.dumps(batches))
    return process


def _step(process: subprocess.Popen[str]) -> None:
    _tell(process, "step")
    assert process.stdout is not None
    if process.stdout.readline() != "taken\n":
        raise RuntimeError(f"a contestant has stopped: {process.args!r}")


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _last_words(process: subprocess.Popen[str]) -> int:
    """Return the peak memory of the process in MB, which it prints at its end."""
    return int(process.communicate()[0])


def main(name: str) -> None:
    """Run a contestant's process. The first line of stdin contains the batches. Each further line requests a step."""
    if name in OURS:
        reuse_memory()  # The same setting as in `python -m training`.
    take = contestant(name, json.loads(sys.stdin.readline()))
    for _ in sys.stdin:
        take()
        print("taken", flush=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


if __name__ == "__main__":
    main(sys.argv[1])
