"""Loads of the benchmarks: texts of known lengths in requests, from a number of clients or at a given rate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle

import numpy as np

from models.bundle.tokenizer import Tokenizer
from models.python_docs import sections

MODEL_NAME = "minilm"
"""Model name in the requests to all servers."""
MEAN, SIGMA, LONGEST = 40, 0.9, 256
"""Parameters of the log-normal lengths of mixed texts, in tokens including special tokens.

Half of the texts have 27 tokens or fewer.
"""
SPECIAL = 2
"""Special tokens of every text: [CLS] and [SEP]."""


@dataclass(frozen=True)
class Load:
    """A pattern of requests.

    In a closed loop, each client waits for its reply. In an open loop, requests are sent at a rate.
    """

    texts: str
    """Name of the population of texts."""
    per_request: int
    clients: int = 1
    capacity: float | None = None
    """Rate of an open loop, as a fraction of the rate under the load `CAPACITY`. None means a closed loop."""


LOADS = {
    "singles_1": Load("short", 1),
    "singles_8": Load("short", 1, clients=8),
    "singles_32": Load("short", 1, clients=32),
    "singles_128": Load("short", 1, clients=128),
    "mixed_1": Load("mixed", 32),
    "mixed_4": Load("mixed", 32, clients=4),
    "mixed_16": Load("mixed", 32, clients=16),
    "bulk": Load("mixed", 2000),
    "open_50": Load("short", 1, capacity=0.50),
    "open_80": Load("short", 1, capacity=0.80),
    "open_95": Load("short", 1, capacity=0.95),
    "short": Load("short", 32),
    "middle": Load("middle", 32),
    "long": Load("long", 32),
}
"""Loads in the order of the measurement. `CAPACITY` precedes `open_*`, whose rate depends on it."""
CAPACITY = "singles_32"


@dataclass(frozen=True)
class Population:
    """Texts, and the number of tokens that the model reads of each text."""

    texts: list[str]
    tokens: list[int]


@dataclass(frozen=True)
class Request:
    """A request body in OpenAI's format, which all servers accept, and its numbers of texts and tokens."""

    body: bytes
    texts: int
    tokens: int


def selected(names: Sequence[str]) -> dict[str, Load]:
    """Return the loads with these names or prefixes (such as `singles`), or all loads without names.

    If a load `open_*` is selected, `CAPACITY` is also returned.

    Raises:
        ValueError: no load has one of the names.
    """
    meant = {name: [load for load in LOADS if load == name or load.startswith(f"{name}_")] for name in names or LOADS}
    if unknown := [name for name, loads in meant.items() if not loads]:
        raise ValueError(f"no load {', '.join(unknown)}; available: {', '.join(LOADS)}")
    chosen = set(chain.from_iterable(meant.values()))
    if any(LOADS[load].capacity for load in chosen):
        chosen.add(CAPACITY)
    return {name: load for name, load in LOADS.items() if name in chosen}


def populations(tokenizer: Tokenizer, mixed: int = 2000) -> dict[str, Population]:
    """Return populations of texts from CPython's documentation: 16, 128 and 512 tokens long, and of mixed lengths."""
    drawn = np.random.default_rng(0).lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, mixed)
    lengths = {
        "short": [16] * 2048,
        "middle": [128] * 256,
        "long": [512] * 256,
        "mixed": [int(length) for length in drawn.clip(SPECIAL + 2, LONGEST)],
    }
    words = _words(tokenizer)
    return {
        name: Population(
            [_text(words, length - SPECIAL) for length in wanted],
            [min(length, tokenizer.max_length) for length in wanted],
        )
        for name, wanted in lengths.items()
    }


def requests(population: Population, size: int, model: str = MODEL_NAME) -> list[Request]:
    """Return requests of `size` texts each, in order. Remaining texts are left out."""
    pairs = list(zip(population.texts, population.tokens, strict=True))
    batches = [pairs[start : start + size] for start in range(0, len(pairs) - size + 1, size)]
    return [
        Request(body([text for text, _ in batch], model), len(batch), sum(tokens for _, tokens in batch))
        for batch in batches
    ]


def body(texts: Sequence[str], model: str = MODEL_NAME) -> bytes:
    """Return the JSON body of a request for the vectors of `texts`."""
    return json.dumps({"model": model, "input": list(texts)}).encode()


def prepared(population: Mapping[str, Population], loads: Mapping[str, Load]) -> dict[str, Iterator[Request]]:
    """Return an endless stream of requests for each load. A text repeats only after all texts have been requested."""
    return {name: cycle(requests(population[load.texts], load.per_request)) for name, load in loads.items()}


def _words(tokenizer: Tokenizer) -> Iterator[tuple[str, int]]:
    """Yield the documentation's words endlessly, each with its number of tokens."""
    words = [word for section in sections() for word in section.text.split()]
    counts = [len(tokens) - SPECIAL for tokens in tokenizer.encode(words)]
    return cycle(zip(words, counts, strict=True))


def _text(words: Iterator[tuple[str, int]], room: int) -> str:
    """Return a text of the next words that has exactly `room` tokens. Words that do not fit are skipped."""
    text = []
    while room:
        word, tokens = next(words)
        if 0 < tokens <= room:
            text.append(word)
            room -= tokens
    return " ".join(text)
