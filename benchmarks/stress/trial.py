"""Common parts of all trials: texts to send, and bounds to check."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.serving.loads import Request, populations, requests
from models.bundle import bundle
from models.bundle.tokenizer import Tokenizer


class Bound(NamedTuple):
    """A requirement with its measurement."""

    what: str
    measured: float
    limit: float | None = None
    """Limit of the measurement, or None for a figure that only explains other figures."""
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """True if the measurement meets the limit."""
        if self.limit is None:
            return True
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def __str__(self) -> str:
        if self.limit is None:
            return f"       {self.what}: {self.measured:.4g}"
        sign = "≥" if self.at_least else "≤"
        return f"{'holds' if self.holds else 'FAILS'}  {self.what}: {self.measured:.4g} ({sign} {self.limit:.4g})"


@dataclass
class Texts:
    """Requests to send: single short texts, and requests of 32 and 2,000 texts of mixed lengths."""

    singles: Iterator[Request]
    mixed: Iterator[Request]
    bulk: Iterator[Request]

    @classmethod
    def of(cls, folder: Path) -> Texts:
        """Make the requests from the benchmark's texts."""
        manifest = bundle.load(folder).manifest
        texts = populations(Tokenizer(folder / "tokenizer.json", max_length=manifest.max_length))
        return cls(*(cycle(requests(texts[name], n)) for name, n in (("short", 1), ("mixed", 32), ("mixed", 2000))))


Trial = Callable[..., list[Bound]]
"""Type of a function of a server, texts, seconds and further arguments, which runs a trial."""


class Planned(NamedTuple):
    """A trial with the server that it needs."""

    trial: Trial
    seconds: float
    """Seconds at full length."""
    options: Sequence[str] = ()
    """Command-line options of the server."""
    apart: bool = False
    """True if the server gets CPUs of its own, because the callers need much CPU time."""
    keys: Mapping[str, str] = {}
    """Secrets of the keys by name. Each key may use the corpora whose names begin with its own name."""


def p99(seconds: Sequence[float]) -> float:
    """Return the 99th percentile, or infinity without any value."""
    return float(np.percentile(seconds, 99)) if seconds else math.inf


@contextmanager
def repeated(work: Callable[[], object], every: float = 0.0) -> Iterator[None]:
    """Call `work` on a thread of its own until the block ends, with `every` seconds before each call."""
    stop = threading.Event()

    def repeating() -> None:
        while not stop.wait(every):
            work()

    thread = threading.Thread(target=repeating)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
