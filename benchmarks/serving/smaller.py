"""Speed of smaller encoders relative to `minilm`, in requests of many texts to one server with all encoders."""

from __future__ import annotations

from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.interleave import interleaved, rates, seconds_of
from benchmarks.serving.contestants import Spec, Turn, server_command, started
from benchmarks.serving.loads import LOADS, MODEL_NAME, populations, requests
from benchmarks.serving.processes import cpu_seconds
from models.bundle import sources
from models.bundle.tokenizer import Tokenizer

ENCODERS = ("minilm", "minilm+default", "minilm+distilled", "minilm+fast")
"""Encoders that are compared. The first one is the reference."""
LOAD = "bulk"
ROUNDS = 15


def measure() -> dict[str, Any]:
    """Return each encoder's median texts per second over rounds, and its ratio to `minilm` in the same round.

    `cpu` has the same figures for seconds of the server's CPU time, which other processes on the machine disturb less.
    """
    tokenizer = Tokenizer(sources.resolve("minilm") / "tokenizer.json", max_length=256)
    texts, load = populations(tokenizer), LOADS[LOAD]
    command = server_command(*(part for encoder in ENCODERS for part in ("--bundle", encoder)))
    spec = Spec(command, "our server at its default settings", "/v1/embeddings")
    names = [encoder.removeprefix(f"{MODEL_NAME}+") for encoder in ENCODERS]
    population = texts[load.texts]
    with TemporaryDirectory() as cache, started(spec, texts, 256, population.texts[0], Path(cache)) as server:
        streams = {name: cycle(requests(population, load.per_request, name)) for name in names}

        def call(name: str) -> dict[str, float]:
            before = cpu_seconds(server.pid)
            wall = seconds_of(lambda: server.take(Turn(load, streams[name], seconds=0.0)))
            return {"wall": wall, "cpu": cpu_seconds(server.pid) - before}

        taken = interleaved({name: partial(call, name) for name in names}, ROUNDS)
        figures = {}
        for clock in ("wall", "cpu"):
            seconds = {name: [turn[clock] for turn in turns] for name, turns in taken.items()}
            figures[clock] = rates(seconds, load.per_request, MODEL_NAME)
        return {
            "setting": f"{LOAD}: one request of {load.per_request} texts after another, {ROUNDS} interleaved rounds",
            "server": server.about(),
            "figures": figures,
        }
