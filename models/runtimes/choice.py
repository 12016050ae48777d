"""Which runtime and precision run a bundle fastest on this machine, found by measuring them side by side.

Quick is not enough: what takes part must give the vectors of the float32 reference, and not be barred by the bundle.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from models.bundle import Bundle
from models.runtimes import REFERENCE, RUNTIMES, Pair, available, cache
from models.runtimes.barred import barred
from models.runtimes.base import Options, Runtime, RuntimeUnavailable
from models.runtimes.measurement import Measured, measure, told

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """A pair, and what it was chosen from."""

    pair: Pair
    measured: Sequence[Measured] = ()
    """Empty where there was nothing to choose from."""

    def instead(self, bundle: Bundle, error: Exception, *, among: Sequence[Pair]) -> Choice | None:
        """The next fastest, now that this one does not load, which its row says; None where no other is faithful."""
        broken = Measured(*self.pair, error=told(error, bundle))
        measured = [broken if row.pair == self.pair else row for row in self.measured]
        left = [row.pair for row in measured if row.faithful and row.pair in among]
        return Choice(fastest(measured, among=left), measured) if left else None

    def table(self) -> list[dict[str, Any]]:
        """A row for each measured pair, as JSON: its figures, whether it was `chosen`, and if not why."""
        return [asdict(row) | {"chosen": row.pair == self.pair, "why_not": self._why_not(row)} for row in self.measured]

    def __str__(self) -> str:
        if self.pair == REFERENCE or not (found := self._chosen):
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
        if row.shortcoming:
            return row.shortcoming
        quicker = self._chosen and (row.times_reference or 0) > (self._chosen.times_reference or 0)
        return "not asked for" if quicker else "slower"


def choose(bundle: Bundle, options: Options, *, runtime: str | None = None, precision: str | None = None) -> Choice:
    """The fastest faithful pair of this runtime and this precision, of any where they are None.

    All pairs of the machine are measured, once for each bundle and host: the cache remembers it. Where one does not
    run, which may pass, the next start measures again. A pair that is the only one asked for is taken as it is.

    Raises:
        RuntimeUnavailable: no such pair runs here, or none of them may serve the bundle.
        BundleError: its table of engines is none.
    """
    pairs = candidates(bundle, options, runtime=runtime, precision=precision)
    if len(pairs) == 1:
        return Choice(pairs[0])
    measured: Sequence[Measured] = cache.recall(cache.key(bundle, options), Measured.read)
    if not measured:
        log.info("measuring %s on this machine, once", ", ".join(map(str, available(bundle, options))))
        measured = measure(bundle, options)
        keep(bundle, options, measured)
    reasons = barred(bundle)
    measured = [replace(row, barred=reasons.get(row.pair)) for row in measured]
    return Choice(fastest(measured, among=pairs), measured)


def opened(
    bundle: Bundle, options: Options, *, runtime: str | None = None, precision: str | None = None
) -> tuple[Choice, Runtime]:
    """Load the fastest pair that does load: one that was remembered may run no more.

    Raises:
        RuntimeUnavailable, BundleError: see `choose`.
    """
    choice = choose(bundle, options, runtime=runtime, precision=precision)
    while True:
        try:
            return choice, RUNTIMES[choice.pair.runtime](bundle, choice.pair.precision, options)
        except Exception as error:  # the runtimes' errors have no class in common
            among = candidates(bundle, options, runtime=runtime, precision=precision)
            if not (following := choice.instead(bundle, error, among=among)):
                raise
            log.warning("%s does not load, so %s is taken: %s", choice.pair, following.pair, error)
            cache.forget(cache.key(bundle, options))
            choice = following


def keep(bundle: Bundle, options: Options, measured: Sequence[Measured]) -> None:
    """Let the next start on this host find what was measured; not where a pair does not run, which may pass."""
    if not any(row.error for row in measured):
        cache.remember(cache.key(bundle, options), [asdict(row) for row in measured])


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


def fastest(measured: Sequence[Measured], *, among: Sequence[Pair]) -> Pair:
    """The quickest of those that may serve the bundle.

    Raises:
        RuntimeUnavailable: none of them may.
    """
    faithful = [row for row in measured if row.faithful and row.pair in among]
    if not faithful:
        raise RuntimeUnavailable(f"none of {', '.join(map(str, among))} gives the vectors of {REFERENCE} here")
    return max(faithful, key=lambda row: row.times_reference or 0.0).pair
