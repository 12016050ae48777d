"""Speed of smaller encoders relative to `minilm`, in requests of many texts to one server with all encoders."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.interleave import interleaved, rates
from benchmarks.serving.contestants import Spec, Turn, started
from benchmarks.serving.loads import LOADS, MODEL_NAME, populations, requests
from benchmarks.serving.processes import cpu_seconds
from models.bundle import sources
from models.bundle.tokenizer import Tokenizer

ENCODERS = ("minilm", "minilm+default", "minilm+distilled", "minilm+fast")
"""Encoders that are compared. The first one is the reference."""
LOAD = "bulk"
ROUNDS = 15


def measure(encoders: Sequence[str] = ENCODERS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return each encoder's median texts per second over rounds, and its ratio to `minilm` in the same round.

    `cpu` has the same figures for seconds of the server's CPU time, which other processes on the machine disturb less.
    An encoder is `minilm`, `minilm+NAME` or the folder of a bundle, which is named after its folder.
    """
    tokenizer = Tokenizer(sources.resolve("minilm") / "tokenizer.json", max_length=256)
    texts, load = populations(tokenizer), LOADS[LOAD]
    command = [sys.executable, "-m", "serving", "--data", "{data}", "--port", "{port}", "--no-demo"]
    command += [part for encoder in encoders for part in ("--bundle", encoder)]
    spec = Spec(tuple(command), "our server at its default settings", "/v1/embeddings")
    names = [Path(encoder).name.removeprefix(f"{MODEL_NAME}+") for encoder in encoders]
    population = texts[load.texts]
    with TemporaryDirectory() as cache, started(spec, texts, 256, population.texts[0], Path(cache)) as server:
        streams = {name: cycle(requests(population, load.per_request, name)) for name in names}
        cpu: dict[str, list[float]] = {name: [] for name in names}

        def call(name: str) -> None:
            before = cpu_seconds(server.pid)
            server.take(Turn(load, streams[name], seconds=0.0))
            cpu[name].append(cpu_seconds(server.pid) - before)

        wall = interleaved({name: partial(call, name) for name in names}, rounds)
        # The first round is a warm-up and is left out.
        cpu = {name: seconds[-rounds:] for name, seconds in cpu.items()}
        return {
            "setting": f"{LOAD}: one request of {load.per_request} texts after another, {rounds} interleaved rounds",
            "server": server.about(),
            "figures": {
                "wall": rates(wall, load.per_request, MODEL_NAME),
                "cpu": rates(cpu, load.per_request, MODEL_NAME),
            },
        }
