"""Speed of the training steps of every objective, the published training loop, and sentence-transformers' trainer.

Weights are random, because they do not affect speed. Each contestant takes several steps before the program waits for
the device, as in a training run. Turns of the contestants are interleaved, so that ratios are valid on a shared
machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.parts import Report
from benchmarks.interleave import interleaved, rates, seconds_of
from benchmarks.loops import PEERS, ours, peer_meter
from models.encoder.encoder import Encoder
from training.checkpoints.speed import SpeedMeter, matmul_peak
from training.config import from_preset
from training.data.batches import Batch

OURS = ("simcse", "gs-infonce", "dclr", "whitenedcse", "imsimcse")
LAUNCHED = "simcse_launched"
"""SimCSE's step with the whole batch in one chunk. It is no CUDA graph, so every kernel is launched separately."""
SENTENCES = 1_000_000
KERNELS = 15
"""Number of kernels in a profile, which lists the most expensive ones."""


class Size(NamedTuple):
    """Size of a measurement."""

    batch: int = 64
    steps: int = 20
    """Number of steps per turn."""
    rounds: int = 6
    warmup: int = 2


@dataclass(frozen=True)
class Contestant:
    """A training step on the next batch, and a meter that computes figures from batches and seconds."""

    step: Callable[[], object]
    meter: SpeedMeter


def contestants(
    backbone: Path, device: str, texts: Sequence[Sequence[str]], report: Report
) -> Mapping[str, Contestant]:
    """Return all contestants by name. A contestant that fails is recorded in the report."""
    makers: dict[str, Callable[[], Contestant]] = {
        **{name: partial(_ours, name, backbone, device, texts) for name in OURS},
        LAUNCHED: partial(_ours, "simcse", backbone, device, texts, chunk_size=len(texts[0])),
        **{name: partial(_peer, name, backbone, device, texts) for name in PEERS},
    }
    found = {}
    for name, make in makers.items():
        with report.attempt(name):
            found[name] = make()
    return found


def measure(
    taking: Mapping[str, Contestant], device: str, batches: Sequence[Batch], size: Size, told: Callable[[Any], object]
) -> None:
    """Measure complete steps (tokens, forward, backward, clip, AdamW) of the contestants in turns.

    `told` receives the figures after every round.
    """

    def turn(one: Contestant) -> None:
        for _ in range(size.steps):
            one.step()
        synchronise(device)

    interleaved(
        {name: partial(seconds_of, partial(turn, one)) for name, one in taking.items()},
        size.rounds,
        size.warmup,
        after=lambda seconds: told(figures(taking, seconds, batches, size)),
    )


def figures(
    taking: Mapping[str, Contestant], seconds: Mapping[str, list[float]], batches: Sequence[Batch], size: Size
) -> dict[str, dict[str, float]]:
    """Return medians over rounds, and the ratios to the peers' times in the same round."""
    amount = size.batch * size.steps
    peers = [name for name in (*PEERS, LAUNCHED) if name in seconds]
    against = {peer: rates(seconds, amount, peer) for peer in peers}
    found = {}
    for name, times in seconds.items():
        median = statistics.median(times)
        speed = taking[name].meter([(1, batch) for batch in batches[: size.steps]], median)
        found[name] = {
            "ms_a_step": round(median / size.steps * 1e3, 2),
            "sentences_per_s": round(amount / median),
            "utilisation": round(speed["utilisation"], 3),
            "seconds_for_1e6_sentences": round(median / amount * SENTENCES),
            **{f"times_{peer}": against[peer][name][f"times_{peer}"] for peer in peers},
        }
    return found


def profile(step: Callable[[], object], device: str, steps: int) -> dict[str, Any]:
    """Return the milliseconds per step of the most expensive kernels (on a CPU: of torch operators), and of all."""
    kind = torch.profiler.ProfilerActivity.CUDA if device == "cuda" else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[kind]) as taken:
        for _ in range(steps):
            step()
        synchronise(device)
    spent = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    events = sorted(taken.key_averages(), key=lambda event: -getattr(event, spent))
    dearest = {event.key[:100]: round(getattr(event, spent) / steps / 1e3, 3) for event in events[:KERNELS]}
    return {
        "ms_a_step": round(sum(getattr(event, spent) for event in events) / steps / 1e3, 2),
        "launches_a_step": round(sum(event.count for event in events) / steps),
        "dearest_ms_a_step": dearest,
    }


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def autocast(device: str) -> torch.dtype | None:
    """Return the dtype of matrix products, as in the peers: bfloat16 on CUDA, and None for float32 on a CPU."""
    return torch.bfloat16 if device == "cuda" else None


def peak(device: str) -> float:
    """Return the measured peak of matrix products in the dtype of `autocast`, in operations per second."""
    return matmul_peak(torch.device(device), autocast(device) or torch.float32)


def _ours(name: str, backbone: Path, device: str, texts: Sequence[Sequence[str]], **changes: Any) -> Contestant:
    given = {"batch_size": len(texts[0]), "dropout": 0.1, **changes}
    if name == "whitenedcse":  # Groups have two channels at any width, as in the preset for BERT-base.
        given["groups"] = Encoder.load(backbone).dim // 2
    config = from_preset(name, backbone=str(backbone)).override(given)
    return Contestant(*ours(config, cycle(texts), device, autocast(device)))


def _peer(name: str, backbone: Path, device: str, texts: Sequence[Sequence[str]]) -> Contestant:
    return Contestant(PEERS[name](cycle(texts), backbone, device), peer_meter(backbone, peak(device)))
