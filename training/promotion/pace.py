"""Is a graph of a reduced precision quicker here? Measured side by side, round by round."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from models.bundle import FP32
from training.evaluation.vectors import Encode

Timings = Callable[[Mapping[str, Encode], Sequence[str]], Mapping[str, Sequence[float]]]
"""Seconds of each round of each precision, over the same texts."""

ROUNDS = 9
LENGTHS = (4, 6, 8, 12, 16, 24, 40, 80, 160)
"""Words of the texts, as many of each: queries, sentences and paragraphs."""
TEXTS_OF_EACH = 6
LEAST_GAIN = 1.05
"""How many times as fast a reduced precision must be to be kept: two measurements of one graph differ by less."""


def length_mix(words: Sequence[str], *, seed: int = 0) -> list[str]:
    """Texts of every length in `LENGTHS`, drawn from `words`."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=length)) for _ in range(TEXTS_OF_EACH) for length in LENGTHS]


def interleaved(graphs: Mapping[str, Encode], texts: Sequence[str]) -> dict[str, list[float]]:
    """Every precision once a round, each round begun by another one; a first round is not counted."""
    seconds: dict[str, list[float]] = {precision: [] for precision in graphs}
    names = list(graphs)
    for i in range(ROUNDS + 1):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            started = perf_counter()
            graphs[name](texts)
            if i:
                seconds[name].append(perf_counter() - started)
    return seconds


def judged(seconds: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Of each precision its median and, next to float32's, whether it is kept."""
    base = median(seconds[FP32])
    found: dict[str, dict[str, Any]] = {FP32: {"seconds": base, "rounds": len(seconds[FP32]), "kept": True}}
    for precision, rounds in seconds.items():
        if precision != FP32:
            times = base / median(rounds)
            found[precision] = {
                "seconds": median(rounds),
                "rounds": len(rounds),
                "times_as_fast": times,
                "kept": times >= LEAST_GAIN,
            }
    return found
