"""Speed of smaller encoders in comparison with `minilm`, in requests of many texts to one server that serves all."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.contestants import Spec, Turn, started
from benchmarks.interleave import interleaved, rates
from benchmarks.loads import LOADS, MODEL_NAME, populations, requests
from models.bundle import sources
from models.bundle.tokenizer import Tokenizer

ENCODERS = ("minilm", "minilm+default", "minilm+distilled", "minilm+fast")
"""Encoders that are compared. The first encoder is the reference."""
LOAD = "bulk"
ROUNDS = 15


def measure(encoders: Sequence[str] = ENCODERS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return each encoder's median texts per second over rounds, and its ratio to `minilm` in the same round.

    An encoder is `minilm`, `minilm+NAME` or the folder of a bundle. A bundle is named after its folder.
    """
    tokenizer = Tokenizer(sources.resolve("minilm") / "tokenizer.json", max_length=256)
    texts, load = populations(tokenizer), LOADS[LOAD]
    command = [sys.executable, "-m", "serving", "--data", "{data}", "--port", "{port}", "--no-demo"]
    command += [part for encoder in encoders for part in ("--bundle", encoder)]
    spec = Spec(tuple(command), "our server at its default settings", "/v1/embeddings")
    names = [Path(encoder).name.removeprefix(f"{MODEL_NAME}+") for encoder in encoders]
    population = texts[load.texts]
    with TemporaryDirectory() as cache, started(spec, texts, 256, population.texts[0], Path(cache)) as server:
        calls = {
            name: partial(server.take, Turn(load, cycle(requests(population, load.per_request, name)), seconds=0.0))
            for name in names
        }
        seconds = interleaved(calls, rounds)
        return {
            "setting": f"{LOAD}: one request of {load.per_request} texts after another, {rounds} interleaved rounds",
            "server": server.about(),
            "figures": rates(seconds, load.per_request, MODEL_NAME),
        }
