"""Which runtime and precision run a bundle fastest on this machine, found by measuring them side by side.

Quick is not enough: what takes part must give the vectors of the float32 reference, for every probe.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.bundle import GOLDEN_COSINE, Bundle
from models.graph import Graph
from models.runtimes import REFERENCE, RUNTIMES, Pair, available, cache
from models.runtimes.base import Options, RuntimeUnavailable, first_line

log = logging.getLogger(__name__)

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
Clock = Callable[[], float]

PROBES = 24
MEAN_WORDS, SPREAD = 30, 0.8
"""Of the log-normal lengths of the probes: about 40 tokens each."""
ROUNDS = 5
SECONDS = 3.0
"""No round begins after so much time, but for the first two."""


@dataclass(frozen=True)
class Measured:
    """What one pair did on this machine."""

    runtime: str
    precision: str
    texts_per_second: float | None = None
    """Of the median round; None where it does not run."""
    times_reference: float | None = None
    """How many times as fast as the reference it was, round by round; the median."""
    least_cosine: float | None = None
    """The lowest of any probe to the reference's vector; None where that is not finite."""
    error: str | None = None
    """Why it does not run."""

    @classmethod
    def read(cls, row: Any) -> Measured:
        """One that was kept as JSON.

        Raises:
            TypeError, ValueError: it is none.
        """
        if not isinstance(row, dict):
            raise TypeError(f"a row that is no object: {row!r:.40}")
        names, error = (row.get("runtime"), row.get("precision")), row.get("error")
        if not (all(isinstance(name, str) for name in names) and isinstance(error, str | None)):
            raise ValueError(f"names or errors that are no text: {names}, {error}")
        figures = (row.get("texts_per_second"), row.get("times_reference"), row.get("least_cosine"))
        if not all(isinstance(figure, float | None) for figure in figures):
            raise ValueError(f"figures that are no numbers: {figures}")
        return cls(**row)

    @property
    def pair(self) -> Pair:
        """What was measured."""
        return Pair(self.runtime, self.precision)

    @property
    def faithful(self) -> bool:
        """Whether it gives the reference's vectors."""
        return self.least_cosine is not None and self.least_cosine >= GOLDEN_COSINE


@dataclass(frozen=True)
class Choice:
    """A pair, and what it was chosen from."""

    pair: Pair
    measured: Sequence[Measured] = ()
    """Empty where there was nothing to choose from."""

    def instead(self, bundle: Bundle, error: Exception, *, among: Sequence[Pair]) -> Choice | None:
        """The next fastest, now that this one does not load, which its row says; None where no other is faithful."""
        broken = Measured(*self.pair, error=_told(error, bundle))
        measured = [broken if row.pair == self.pair else row for row in self.measured]
        left = [row.pair for row in measured if row.faithful and row.pair in among]
        return Choice(fastest(measured, among=left), measured) if left else None

    def table(self) -> list[dict[str, Any]]:
        """A row for each measured pair, as JSON: its figures, whether it was `chosen`, and if not why."""
        return [asdict(row) | {"chosen": row.pair == self.pair, "why_not": self._why_not(row)} for row in self.measured]

    def __str__(self) -> str:
        if not (found := self._chosen):
            return str(self.pair)
        return (
            f"{self.pair} ({found.times_reference:.1f} times as fast as {REFERENCE}, "
            f"least cosine to it {found.least_cosine:.5f})"
        )

    @property
    def _chosen(self) -> Measured | None:
        return next((row for row in self.measured if row.pair == self.pair), None)

    def _why_not(self, row: Measured) -> str | None:
        if row.pair == self.pair:
            return None
        if row.error:
            return f"does not run: {row.error}"
        if row.least_cosine is None:
            return "gives numbers that are not finite"
        if not row.faithful:
            return f"cosine {row.least_cosine:.5f} to {REFERENCE}, below {GOLDEN_COSINE}"
        quicker = self._chosen and (row.times_reference or 0) > (self._chosen.times_reference or 0)
        return "not asked for" if quicker else "slower"


def choose(bundle: Bundle, options: Options, *, runtime: str | None = None, precision: str | None = None) -> Choice:
    """The fastest faithful pair of this runtime and this precision, of any where they are None.

    All pairs of the machine are measured, once for each bundle and host: the cache remembers it. Where one does not
    run, which may pass, the next start measures again.

    Raises:
        RuntimeUnavailable: no such pair runs here, or none of them gives the reference's vectors.
    """
    pairs = candidates(bundle, options, runtime=runtime, precision=precision)
    if len(pairs) == 1:
        return Choice(pairs[0])
    key = cache.key(bundle, options)
    measured: Sequence[Measured] = cache.recall(key, Measured.read)
    if not measured:
        log.info("measuring %s on this machine, once", ", ".join(map(str, available(bundle, options))))
        measured = measure(bundle, options)
        if not any(row.error for row in measured):
            cache.remember(key, [asdict(row) for row in measured])
    return Choice(fastest(measured, among=pairs), measured)


def candidates(bundle: Bundle, options: Options, *, runtime: str | None, precision: str | None) -> Sequence[Pair]:
    """The pairs that run here, narrowed to a runtime and a precision where they are given.

    Raises:
        RuntimeUnavailable: there are none.
    """
    wanted = {runtime: RUNTIMES[runtime]} if runtime else RUNTIMES
    pairs = available(bundle, options, runtimes=wanted)
    narrowed = [pair for pair in pairs if precision in (None, pair.precision)]
    if not narrowed:
        raise RuntimeUnavailable(f"nothing here runs in {precision}; there is {', '.join(map(str, pairs))}")
    return narrowed


def measure(bundle: Bundle, options: Options) -> Sequence[Measured]:
    """Every pair of this machine on the bundle's probes, the reference first.

    Raises:
        RuntimeUnavailable: nothing runs here.
    """
    encoders: dict[Pair, Encode] = {}
    failed: list[Measured] = []
    for pair in sorted(available(bundle, options), key=lambda pair: pair != REFERENCE):
        try:
            graph = Graph(
                bundle,
                runtime=pair.runtime,
                precision=pair.precision,
                threads=options.threads,
                device=options.device,
            )
            graph.encode(["a text"])
        except Exception as error:  # the runtimes' errors have no class in common
            if pair == REFERENCE:
                raise
            log.warning("%s does not run here, and the next start tries it again: %s", pair, error)
            failed.append(Measured(*pair, error=_told(error, bundle)))
        else:
            encoders[pair] = graph.encode
    return [*compared(encoders, probes(bundle)), *failed]


def probes(bundle: Bundle) -> list[str]:
    """Texts of log-normal lengths, made of the words of the bundle's golden sentences; the model's length cuts them."""
    words = [word for golden in bundle.manifest.golden for word in golden.text.split()] or ["a"]
    draw = random.Random(0)
    lengths = [draw.lognormvariate(0, SPREAD) for _ in range(PROBES)]
    scale = MEAN_WORDS / mean(lengths)
    return [" ".join(draw.choices(words, k=max(1, round(length * scale)))) for length in lengths]


def compared(
    encoders: Mapping[Pair, Encode], texts: Sequence[str], *, clock: Clock = perf_counter
) -> Sequence[Measured]:
    """All of them on the same texts in rounds, each begun by another one; a first round gives the vectors alone."""
    vectors = {pair: encode(texts) for pair, encode in encoders.items()}
    seconds: dict[Pair, list[float]] = {pair: [] for pair in encoders}
    order, begun = list(encoders), clock()
    for i in range(ROUNDS):
        if i >= 2 and clock() - begun > SECONDS:
            break
        for pair in order[i % len(order) :] + order[: i % len(order)]:
            started = clock()
            encoders[pair](texts)
            seconds[pair].append(clock() - started)
    return [
        Measured(
            *pair,
            texts_per_second=len(texts) / median(seconds[pair]),
            times_reference=median(a / b for a, b in zip(seconds[REFERENCE], seconds[pair], strict=True)),
            least_cosine=_least_cosine(vectors[pair], vectors[REFERENCE]),
        )
        for pair in encoders
    ]


def fastest(measured: Sequence[Measured], *, among: Sequence[Pair]) -> Pair:
    """The quickest of those that give the reference's vectors.

    Raises:
        RuntimeUnavailable: none of them does.
    """
    faithful = [row for row in measured if row.faithful and row.pair in among]
    if not faithful:
        raise RuntimeUnavailable(f"none of {', '.join(map(str, among))} gives the vectors of {REFERENCE} here")
    return max(faithful, key=lambda row: row.times_reference or 0.0).pair


def _told(error: Exception, bundle: Bundle) -> str:
    """For a table that others read: one line, which does not say where the bundle lies."""
    line = first_line(error)
    for folder in (bundle.folder.resolve(), bundle.folder):
        line = line.replace(f"{folder}/", "").replace(f"{folder}: ", "")
    return line


def _least_cosine(vectors: NDArray[np.float32], reference: NDArray[np.float32]) -> float | None:
    least = float((vectors.astype(np.float64) * reference).sum(axis=1).min())
    return least if np.isfinite(least) else None
