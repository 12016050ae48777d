"""What clients ask of a server: texts of known lengths, in requests of a size, from so many clients or at a rate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle

import numpy as np

from models.python_docs import sections
from models.tokenizer import Tokenizer

MODEL_NAME = "minilm"
"""What every server calls the model that all of them serve."""
MEAN, SIGMA, LONGEST = 40, 0.9, 256
"""Mixed lengths: log-normal, in tokens with the special ones; half of the texts have 27 or fewer."""
SPECIAL = 2
"""Tokens of every text that are not its own: [CLS], [SEP]."""


@dataclass(frozen=True)
class Load:
    """How a server is asked: each client waits for its reply before it asks again, or all come at a rate."""

    texts: str
    """The population they are drawn from."""
    per_request: int
    clients: int = 1
    capacity: float | None = None
    """Open loop: this share of the rate that the contestant had under `CAPACITY`, at random moments."""

    @property
    def for_one_caller(self) -> bool:
        """Whether a library without a server can do it: called, it is busy."""
        return self.clients == 1 and self.capacity is None


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
"""`open_*` need the rate under `CAPACITY`, which therefore comes before them."""
CAPACITY = "singles_32"


@dataclass(frozen=True)
class Population:
    """Texts, and the tokens that the model reads of each."""

    texts: list[str]
    tokens: list[int]


@dataclass(frozen=True)
class Request:
    """A body in OpenAI's format, the one that all servers read, and how much is in it."""

    body: bytes
    texts: int
    tokens: int


def selected(names: Sequence[str]) -> dict[str, Load]:
    """The loads that bear one of the names or begin with it (`singles`); all for none. `open_*` bring `CAPACITY`.

    Raises:
        ValueError: a name that no load has.
    """
    meant = {name: [load for load in LOADS if load == name or load.startswith(f"{name}_")] for name in names or LOADS}
    if unknown := [name for name, loads in meant.items() if not loads]:
        raise ValueError(f"no load {', '.join(unknown)}; there are {', '.join(LOADS)}")
    chosen = set(chain.from_iterable(meant.values()))
    if any(LOADS[load].capacity for load in chosen):
        chosen.add(CAPACITY)
    return {name: load for name, load in LOADS.items() if name in chosen}


def populations(tokenizer: Tokenizer, mixed: int = 2000) -> dict[str, Population]:
    """Prose of CPython's documentation cut to lengths: `short` 16 tokens, `middle` 128, `long` 512, so many `mixed`."""
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


def requests(population: Population, size: int) -> list[Request]:
    """The texts in order, `size` a request; those left over are left out."""
    pairs = list(zip(population.texts, population.tokens, strict=True))
    batches = [pairs[start : start + size] for start in range(0, len(pairs) - size + 1, size)]
    return [
        Request(body([text for text, _ in batch]), len(batch), sum(tokens for _, tokens in batch)) for batch in batches
    ]


def body(texts: Sequence[str]) -> bytes:
    """A request for the vectors of `texts` as JSON."""
    return json.dumps({"model": MODEL_NAME, "input": list(texts)}).encode()


def prepared(population: Mapping[str, Population], loads: Mapping[str, Load]) -> dict[str, Iterator[Request]]:
    """An endless stream of requests for each load; a text comes again only when all have been asked for."""
    return {name: cycle(requests(population[load.texts], load.per_request)) for name, load in loads.items()}


def _words(tokenizer: Tokenizer) -> Iterator[tuple[str, int]]:
    """The words of the documentation again and again, each with its number of tokens."""
    words = [word for section in sections() for word in section.text.split()]
    counts = [len(tokens) - SPECIAL for tokens in tokenizer.encode(words)]
    return cycle(zip(words, counts, strict=True))


def _text(words: Iterator[tuple[str, int]], room: int) -> str:
    """The next words that together have exactly `room` tokens; one that would not fit is passed over."""
    text = []
    while room:
        word, tokens = next(words)
        if 0 < tokens <= room:
            text.append(word)
            room -= tokens
    return " ".join(text)
