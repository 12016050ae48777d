"""What all trials share: what is sent, and what is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.client import Sample
from benchmarks.loads import Request, populations, requests
from models import bundle
from models.tokenizer import Tokenizer


class Bound(NamedTuple):
    """One thing that was asked for."""

    what: str
    measured: float
    limit: float | None = None
    """None: nothing is asked, it explains the others."""
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether it is so."""
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
    """What is sent: single short texts, and requests of 32 and 2,000 of mixed lengths."""

    singles: Iterator[Request]
    mixed: Iterator[Request]
    bulk: Iterator[Request]

    @classmethod
    def of(cls, folder: Path) -> Texts:
        """Those of the benchmark."""
        manifest = bundle.load(folder).manifest
        texts = populations(Tokenizer(folder / "tokenizer.json", max_length=manifest.max_length))
        return cls(*(cycle(requests(texts[name], n)) for name, n in (("short", 1), ("mixed", 32), ("mixed", 2000))))


Trial = Callable[..., list[Bound]]
"""Of a server, texts, seconds, and what a trial takes beside them."""


class Planned(NamedTuple):
    """A trial and the server that it needs."""

    trial: Trial
    seconds: float
    """At full length."""
    options: Sequence[str] = ()
    """Of the server."""
    apart: bool = False
    """Whether callers would take much of the CPUs that they shared with the server."""
    keys: Mapping[str, str] = {}
    """Secrets by name; each opens the corpora whose names begin with its own."""


def p99(sample: Sample) -> float:
    """Seconds; without a single answer, for ever."""
    return float(np.percentile(sample.latencies, 99)) if sample.latencies else math.inf
