"""Measurement of each runtime and precision on this machine: speed, and agreement with the float32 reference."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, median
from time import perf_counter
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from models.bundle.bundle import FP32, GOLDEN_COSINE, Bundle
from models.errors import first_line
from models.runtimes import REFERENCE, Pair, available
from models.runtimes.base import Options
from models.runtimes.graph import Graph

log = logging.getLogger(__name__)

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
Open = Callable[[], Encode]
"""Type of a function that loads a graph and returns its encoding function.

The graph is freed when the encoding function is deleted.
"""
Clock = Callable[[], float]

PROBES = 24
MEAN_WORDS, SPREAD = 30, 0.8
"""Mean number of words of the probes (test texts), and the spread of their log-normal length distribution.

The mean corresponds to about 40 tokens.
"""
EVERY = 3
"""Step between timed probes: every third probe is timed.

With fewer probes, rounds are short. Load on the machine then affects a pair and the reference equally.
"""
ROUNDS = 5
"""Number of rounds. In each round, a pair and the reference are measured one after the other."""
SECONDS = 3.0
"""Time limit in seconds, after which each remaining pair is measured in only two rounds."""
RANK_LOSS = 0.1
"""Maximum `rank_loss`, in points of STS-B, at which a pair may serve a bundle (ADR 0012)."""
DECIMALS = 6
"""Number of decimals to which similarities are rounded, so that equal pairs of texts get equal ranks."""


@dataclass(frozen=True)
class Measured:
    """Measurement of one pair of runtime and precision on this machine."""

    runtime: str
    precision: str
    texts_per_second: float | None = None
    """Texts per second in the median round, or None if the pair does not run."""
    times_reference: float | None = None
    """Speed divided by the reference's speed in the same round, as the median over the rounds."""
    least_cosine: float | None = None
    """Minimum cosine, over the probes, between the pair's vector and the reference's vector.

    None if the cosine is not finite.
    """
    rank_loss: float | None = None
    """Result of the function `rank_loss`, or None if a number is not finite."""
    error: str | None = None
    """Reason why the pair does not run."""
    barred: str | None = None
    """Reason why the bundle's `engines.json` excludes the pair."""

    @classmethod
    def read(cls, row: Any) -> Measured:
        """Parse a row stored as JSON.

        Raises:
            TypeError: the row is invalid.
        """
        read = cls(**row)
        for name, kind in get_type_hints(cls).items():
            if not isinstance(getattr(read, name), kind):
                raise TypeError(f"{name}: {getattr(read, name)!r:.40} is not {kind}")
        return read

    @property
    def pair(self) -> Pair:
        return Pair(self.runtime, self.precision)

    @property
    def faithful(self) -> bool:
        """True if this pair of runtime and precision may serve the bundle.

        This requires that the pair runs, that its vectors agree with the reference's, and that `barred` is None.
        """
        return self.shortcoming is None

    @property
    def shortcoming(self) -> str | None:
        """Reason, other than speed, why the pair of runtime and precision may not serve the bundle.

        None if there is no such reason.
        """
        if self.error:
            return f"does not run: {self.error}"
        if self.barred:
            return self.barred
        if self.least_cosine is None or self.rank_loss is None:
            return "has vectors with numbers that are not finite"
        if self.least_cosine < GOLDEN_COSINE:
            return f"cosine {self.least_cosine:.5f} to {REFERENCE}, below {GOLDEN_COSINE}"
        if self.rank_loss > RANK_LOSS:
            return f"rank loss {self.rank_loss:.3f} to {REFERENCE}, above {RANK_LOSS}"
        return None


def measure(bundle: Bundle, options: Options) -> Sequence[Measured]:
    """Measure every available pair of runtime and precision, with the bundle's `probes` as texts.

    The pair `REFERENCE` is measured first, and the other pairs are compared with it. If the reference fails, its error
    is raised. If another pair fails, the `Measured` of this pair has the error.

    Raises:
        RuntimeUnavailable: no runtime works on this machine.
    """
    return compared(graphs(bundle, options), probes(bundle), describe=lambda error: error_line(error, bundle))


def graphs(bundle: Bundle, options: Options) -> dict[Pair, Open]:
    """Return a function that loads the graph, for each pair of runtime and precision that this machine supports.

    The reference, float32 on ONNX Runtime, comes first. Pairs of reduced precision come next, because they are usually
    faster than the remaining float32 pairs.

    Raises:
        RuntimeUnavailable: no runtime works on this machine.
    """
    order = sorted(available(bundle, options), key=lambda pair: (pair != REFERENCE, pair.precision == FP32))
    return {pair: partial(_opened, bundle, pair, options) for pair in order}


def _opened(bundle: Bundle, pair: Pair, options: Options) -> Encode:
    graph = Graph(
        bundle, runtime=pair.runtime, precision=pair.precision, threads=options.threads, device=options.device
    )
    return graph.encode


def probes(bundle: Bundle) -> list[str]:
    """Return the probes: texts of log-normal lengths, made of the words of the bundle's golden sentences.

    Texts longer than the model's limit are truncated when they are encoded.
    """
    words = [word for golden in bundle.manifest.golden for word in golden.text.split()] or ["a"]
    draw = random.Random(0)
    lengths = [draw.lognormvariate(0, SPREAD) for _ in range(PROBES)]
    scale = MEAN_WORDS / mean(lengths)
    return [" ".join(draw.choices(words, k=max(1, round(length * scale)))) for length in lengths]


def compared(
    graphs: Mapping[Pair, Open],
    texts: Sequence[str],
    *,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    describe: Callable[[Exception], str] = first_line,
    clock: Clock = perf_counter,
) -> list[Measured]:
    """Measure each pair of runtime and precision, and compare it with the pair `REFERENCE`.

    In each of up to `rounds` rounds, the pair and the reference are timed one after the other. Only their two graphs
    are loaded at the same time. After `seconds`, each remaining pair is measured in only two rounds.

    If the reference fails, its error is raised. If another pair fails, `describe` converts the error to the text of
    `Measured.error`.
    """
    some = texts[::EVERY]

    def time(encode: Encode) -> float:
        started = clock()
        encode(some)
        return clock() - started

    reference = graphs[REFERENCE]()
    exact = reference(texts)
    first = time(reference)
    began = clock()
    of_reference: list[float] = []

    def beside_reference(pair: Pair, encode: Encode) -> Measured:
        closeness = _closeness(encode(texts), exact)
        time(encode)  # This duration is not used, because a graph is slower when its shapes are new.
        durations: list[float] = []
        ratios: list[float] = []
        while len(ratios) < 2 or (len(ratios) < rounds and clock() - began <= seconds):
            of_reference.append(time(reference))
            durations.append(time(encode))
            ratios.append(of_reference[-1] / durations[-1])
        return Measured(*pair, len(some) / median(durations), median(ratios), *closeness)

    rows: list[Measured] = []
    for pair, load in graphs.items():
        if pair != REFERENCE:
            try:
                rows.append(beside_reference(pair, load()))
            except Exception as error:  # Errors of runtimes have no common base class.
                log.warning("%s does not run on this machine: %s", pair, error)
                rows.append(Measured(*pair, error=describe(error)))
    speed = len(some) / median(of_reference or [first])
    return [Measured(*REFERENCE, speed, 1.0, *_closeness(exact, exact)), *rows]


def error_line(error: Exception, bundle: Bundle) -> str:
    """Return an error in one line for a public table, without the path of the bundle."""
    line = first_line(error)
    for folder in (bundle.folder.resolve(), bundle.folder):
        line = line.replace(f"{folder}/", "").replace(f"{folder}: ", "")
    return line


def _closeness(vectors: NDArray[np.float32], reference: NDArray[np.float32]) -> tuple[float | None, float | None]:
    """Return the minimum cosine between a vector and its reference, and the `rank_loss` of all vectors.

    Both are None if the minimum cosine is not finite.
    """
    least = float((vectors.astype(np.float64) * reference).sum(axis=1).min())
    return (least, rank_loss(vectors, reference)) if np.isfinite(least) else (None, None)


def rank_loss(vectors: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """Return the rank loss of unit vectors (N, D) in comparison with `reference` (N, D).

    The cosines between all pairs of rows are computed for each of the two arrays. The rank loss is 100 × (1 - Spearman
    correlation of the two lists of cosines). This is the loss in points on an STS task whose human scores are the
    reference's cosines. If all cosines of the reference are equal, the loss is 0. If only the cosines of `vectors` are
    all equal, the loss is 100.
    """
    pairs = np.triu_indices(len(vectors), k=1)
    ours, theirs = (_ranks((each.astype(np.float64) @ each.T)[pairs]) for each in (vectors, reference))
    if not theirs.any():
        return 0.0
    scale = np.linalg.norm(ours) * np.linalg.norm(theirs)
    return 100 * (1 - float(ours @ theirs / scale)) if scale else 100.0


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ranks (n,) of values, minus the mean rank. Equal values get the mean of their ranks."""
    _, place, counts = np.unique(values.round(DECIMALS), return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks - ranks.mean() if len(ranks) else ranks
