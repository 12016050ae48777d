"""Checks of every pair of runtime and precision of this machine, by comparison with the float32 graph."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

from models import cpus
from models.bundle.bundle import ENGINES, FP32, GOLDEN_COSINE, Bundle
from models.errors import first_line
from models.runtimes import REFERENCE, Pair, choice
from models.runtimes.base import Options
from models.runtimes.choice import Choice, barred, fastest
from models.runtimes.graph import golden_cosine_of
from models.runtimes.measurement import Clock, Measured, Open, compared, error_line, graphs, probes
from training.evaluation.vectors import Encode
from training.promotion.checks import Check, Evaluator, failure, without_nonfinite
from training.promotion.yardsticks import DRIFT

NAME = "engines"
ROUNDS = 9
"""Number of measurement rounds for each pair. A server uses fewer rounds."""
LEAST_GAIN = 1.05
"""Minimum speed of a reduced-precision graph relative to float32, above the measurement error of less than 5 %."""


@dataclass(frozen=True)
class Machine:
    """The runtimes of this machine. By default, they run with the default options of a server."""

    options: Options = field(default_factory=lambda: Options(threads=cpus.available()))
    graphs: Callable[[Bundle, Options], Mapping[Pair, Open]] = graphs
    """Function that returns a loader for each pair that works on this machine, among them ONNX Runtime's fp32."""
    clock: Clock = perf_counter


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A pair of runtime and precision, with its measurements.

    `measured.barred` is the reason why a server must not choose the pair by itself, or None.
    """

    measured: Measured
    golden_cosine: float | None = None
    """Minimum cosine to a golden vector, or None if it was not measured.

    It is measured neither for the reference, nor for a pair that can't be evaluated. A pair that is not
    `Measured.faithful` is measured only if it is one of the bundle's own graphs.
    """
    drifts: Mapping[str, float] = field(default_factory=dict)
    """Differences in points between the pair's scores and float32's scores, by metric."""
    own: bool
    """True if the pair is one of the bundle's own graphs of reduced precision, on ONNX Runtime."""
    drifts_too_far: bool = False
    """True if the pair uses the bundle's own graph, and a score differs too much from float32's.

    The difference must exceed both `DRIFT` and the yardstick's limit for this score.
    """

    @property
    def kept(self) -> bool:
        """True if the promoted copy contains this pair of runtime and precision.

        A pair is left out only if it runs one of the bundle's own graphs of reduced precision, and this graph fails or
        is less than `LEAST_GAIN` times as fast as float32.
        """
        return not self.own or (self.measured.times_reference or 0) >= LEAST_GAIN

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON, with None for numbers that are not finite."""
        facts = {"golden_cosine": self.golden_cosine, "drifts": dict(self.drifts), "kept": self.kept}
        return {**asdict(self.measured), **without_nonfinite(facts)}


@dataclass(frozen=True, kw_only=True)
class Engines:
    """Results of `check_engines`, which checks a bundle with all pairs of runtime and precision of a machine."""

    machine: Machine
    check: Check
    engines: Sequence[Engine] = ()
    """Results of each pair. The list is empty if float32 on ONNX Runtime is the only pair, or if the check failed."""

    def dropped(self, candidate: Bundle) -> list[str]:
        """Return the candidate's graphs that the promoted copy leaves out, as paths relative to the bundle's folder."""
        slow = [engine.measured.precision for engine in self.engines if not engine.kept]
        return [candidate.graphs[precision].relative_to(candidate.folder).as_posix() for precision in slow]

    def documents(self, candidate: Bundle) -> dict[str, bytes]:
        """Return the table of the promoted copy's engines, as {file name in the bundle: content}.

        An engine is a pair of runtime and precision. `models.runtimes` reads the table. If `engines` is empty, the
        result is {}, and the copy keeps the candidate's own table, if there is one.

        The candidate's own table may bar (exclude from serving) an engine that this machine has not checked. The new
        table bars it, too.
        """
        kept = [engine for engine in self.engines if engine.kept]
        if not kept:
            return {}
        measured = [engine.measured for engine in kept]
        chosen = Choice(fastest(measured, among=[row.pair for row in measured]), measured)
        rows = [engine.to_json() | row for engine, row in zip(kept, chosen.table(), strict=True)]
        judged = {engine.measured.pair for engine in self.engines}
        before = {pair: why for pair, why in barred(candidate).items() if pair not in judged}
        rows += [{**pair._asdict(), "barred": why} for pair, why in before.items()]
        content = {"host": choice.host(self.machine.options), "measured": rows}
        return {ENGINES: (json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()}

    def remember(self, copy: Bundle) -> None:
        """Store the measurements of the bundle `copy` in this host's cache, so that a server does not measure again."""
        measured = [replace(engine.measured, barred=None) for engine in self.engines if engine.kept]
        if measured:
            choice.remember(copy, self.machine.options, measured)


def check_engines(candidate: Bundle, judges: Evaluator, machine: Machine) -> Engines:
    """Check every pair of runtime and precision of the machine on the bundle.

    If float32 on ONNX Runtime is the only pair, nothing is measured. A pair is barred (excluded from serving) if its
    vectors differ too much from the golden vectors, or if its scores differ too much from float32's. The check can pass
    although a pair is barred.

    The check fails if it ends with an error, for example because one of the bundle's own graphs of reduced precision
    does not run. It also fails if the scores of one of these graphs drift too far (see `Engine.drifts_too_far`).
    """
    try:
        engines = _measure_all(candidate, judges, machine)
    except Exception as error:  # The runtimes' errors have no common base class.
        return Engines(machine=machine, check=failure(NAME, first_line(error)))
    numbers = {"limits": dict(judges.yardstick.limits), "engines": [engine.to_json() for engine in engines]}
    says = "; ".join(_describe(engine) for engine in engines) or f"{REFERENCE} is the only engine"
    check = Check(name=NAME, passed=not any(engine.drifts_too_far for engine in engines), says=says, numbers=numbers)
    return Engines(machine=machine, check=check, engines=engines)


def _measure_all(candidate: Bundle, judges: Evaluator, machine: Machine) -> list[Engine]:
    graphs = machine.graphs(candidate, machine.options)
    if len(graphs) == 1:
        return []
    prompts = candidate.manifest.prompts
    rows = compared(
        graphs,
        probes(candidate),
        rounds=ROUNDS,
        seconds=math.inf,
        describe=partial(error_line, bundle=candidate),
        clock=machine.clock,
    )
    float32 = judges.yardstick.scores(judges.with_progress(graphs[REFERENCE]()), prompts)

    def scored(encode: Encode) -> dict[str, float]:
        scores = judges.yardstick.scores(judges.with_progress(encode), prompts)
        return {metric: score - float32[metric] for metric, score in scores.items()}

    return [_check_one(candidate, row, graphs[row.pair], scored, judges.yardstick.limits) for row in rows]


def _check_one(
    candidate: Bundle,
    row: Measured,
    load: Open,
    scored: Callable[[Encode], dict[str, float]],
    limits: Mapping[str, float],
) -> Engine:
    own = row.runtime == REFERENCE.runtime and row.precision != FP32
    if row.pair == REFERENCE or not (row.faithful or own):
        return Engine(measured=row, own=own)
    try:
        encode = load()
        cosine, drifts = golden_cosine_of(encode, candidate), scored(encode)
    except Exception as error:  # Any error fails the check, because the runtimes' errors have no common base class.
        if own:
            raise
        return Engine(measured=replace(row, barred=f"can't be evaluated: {error_line(error, candidate)}"), own=own)
    barred = _bar(cosine, drifts, limits)
    far = own and not all(abs(drift) <= max(DRIFT, limits[metric]) for metric, drift in drifts.items())
    return Engine(
        measured=replace(row, barred=barred), golden_cosine=cosine, drifts=drifts, own=own, drifts_too_far=far
    )


def _bar(cosine: float, drifts: Mapping[str, float], limits: Mapping[str, float]) -> str | None:
    """Return the reason why a runtime in a precision must not serve the bundle, or None if there is no reason.

    The reason is that `cosine`, the lowest to a golden vector, is below `GOLDEN_COSINE`, or that the score of a metric
    differs from float32 by more than its limit. `drifts` are these differences. NaN is also a reason.
    """
    if not cosine >= GOLDEN_COSINE:
        return f"cosine {cosine:.5f} to a golden vector, below {GOLDEN_COSINE}"
    far = [metric for metric, drift in drifts.items() if not abs(drift) <= limits[metric]]
    if not far:
        return None
    return "differs from float32 by " + ", ".join(
        f"{drifts[metric]:+.2f} points of {metric}, more than {limits[metric]:g}" for metric in far
    )


def _describe(engine: Engine) -> str:
    row = engine.measured
    if row.pair == REFERENCE:
        return f"{REFERENCE} is the reference"
    figures = [f"{drift:+.2f} {metric}" for metric, drift in engine.drifts.items()]
    figures += [f"{row.times_reference:.2f} times as fast"] if row.times_reference else []
    shortcoming = row.shortcoming or (None if engine.kept else f"left out: less than {LEAST_GAIN} times as fast")
    return f"{row.pair} {', '.join(figures)}" + (f" (not used: {shortcoming})" if shortcoming else "")
