"""Training steps per second of every objective, compared with the published loop and sentence-transformers."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor

from benchmarks.interleave import interleaved, rates, seconds_of
from benchmarks.loops import LENGTH, PEERS, ours, peer_meter
from benchmarks.serving.processes import ask
from models.bundle.sources import resolve
from models.encoder.encoder import Encoder
from training.checkpoints.speed import SpeedMeter, matmul_peak
from training.config import from_preset
from training.data.batches import Tokeniser
from training.data.corpus import open_corpus
from training.machine.hardware import autocast_dtype
from training.machine.memory import reuse_memory

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
        processes = {name: running.enter_context(_process(name)) for name in names}
        seconds = interleaved(
            {name: partial(seconds_of, partial(ask, process, "step")) for name, process in processes.items()},
            ROUNDS,
            WARMUP,
        )
        memory = {name: int(process.communicate()[0]) for name, process in processes.items()}
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


def contestant(name: str, batches: Sequence[Sequence[str]]) -> Callable[[], object]:
    """Return a function that takes one training step per call. It uses the batches in turn, repeatedly."""
    texts = cycle(batches)
    if name not in OURS:
        return PEERS[name](texts, resolve(BACKBONE), "cpu")
    step, _ = _ours(name, texts)

    def take() -> None:
        step()["loss"].item()

    return take


@cache
def _batches() -> list[list[str]]:
    return list(islice(open_corpus([], held_out=0).batches(BATCH, seed=0), ROUNDS + WARMUP))


def _ours(name: str, texts: Iterator[Sequence[str]]) -> tuple[Callable[[], Mapping[str, Tensor]], SpeedMeter]:
    objective, run, params = OURS[name]
    config = from_preset(objective, backbone=BACKBONE).override(
        {"pooling": "cls", "head": True, "device": "cpu", **run}
    )
    config = replace(config, params=replace(config.params, **params))
    return ours(config, texts, "cpu", autocast_dtype(config.precision, CPU))


def _ratio(seconds: Sequence[float], reference: Sequence[float]) -> float:
    return round(statistics.median(own / theirs for own, theirs in zip(seconds, reference, strict=True)), 2)


def _work(name: str, seconds: float) -> dict[str, float]:
    """Return tokens and operations per second, and the fraction of the peak speed in the contestant's precision."""
    encoder, peak = Encoder.load(BACKBONE), matmul_peak(CPU, torch.float32)
    meter = _ours(name, iter(()))[1] if name in OURS else peer_meter(BACKBONE, peak)
    tokenise = Tokeniser(encoder, encoder, max_length=LENGTH, own=range)
    batches = [(1, tokenise(batch)) for batch in _batches()]
    speed = meter(batches, seconds * len(batches))
    return {
        "tokens_per_s": round(speed["tokens_per_s"]),
        "gflops_per_s": round(speed["flops_per_s"] / 1e9, 1),
        "utilisation": round(speed["utilisation"], 2),
    }


def _types() -> dict[str, torch.dtype]:
    """Return the dtypes in which the contestants compute on this machine."""
    auto = autocast_dtype("auto", CPU)
    return {"fp32": torch.float32} | ({"bf16": auto} if auto else {})


def _process(name: str) -> subprocess.Popen[str]:
    """Start the contestant in a process of its own, as its users run it, with its own threads and heap."""
    command = [sys.executable, "-m", "benchmarks.training", name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    process.stdin.write(json.dumps(_batches()) + "\n")
    process.stdin.flush()
    return process


def main(name: str) -> None:
    """Run a contestant's process. The first line of stdin contains the batches. Each further line requests a step."""
    if name in OURS:
        reuse_memory()  # The same setting as in `python -m training`.
    take = contestant(name, json.loads(sys.stdin.readline()))
    for _ in sys.stdin:
        take()
        print("{}", flush=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)  # MB at most


if __name__ == "__main__":
    main(sys.argv[1])
