"""How a server on this machine would run a candidate: each runtime and precision, held against the float32 graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

from models import cpus
from models.bundle import ENGINES, FP32, GOLDEN_COSINE, Bundle
from models.errors import first_line
from models.runtimes import REFERENCE, Pair, cache
from models.runtimes.barred import barred
from models.runtimes.base import Options
from models.runtimes.choice import Choice, fastest, keep
from models.runtimes.measurement import Clock, Measured, Open, compared, graphs, probes, told
from models.verify import golden_cosine_of
from training.evaluation.vectors import Encode
from training.promotion.checks import Check, Judges, finite
from training.promotion.yardsticks import DRIFT

NAME = "engines"
LEAST_GAIN = 1.05
"""How many times as fast as float32 a graph of the bundle must be to stay: two measurements of one differ by less."""


@dataclass(frozen=True)
class Machine:
    """What a server would find here; its own defaults."""

    options: Options = field(default_factory=lambda: Options(threads=cpus.available()))
    graphs: Callable[[Bundle, Options], Mapping[Pair, Open]] = graphs
    """Every pair, none loaded yet; the reference is among them."""
    clock: Clock = perf_counter


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A pair with what was found of it; `measured.barred` says why `auto` is to pass it over."""

    measured: Measured
    golden_cosine: float | None = None
    """The least to a golden vector; None where it was not asked for, as for a pair that `auto` passes over anyway."""
    drifts: Mapping[str, float] = field(default_factory=dict)
    """By metric, its score minus float32's, in points."""
    own: bool
    """It is a graph of the bundle, of a reduced precision: its maker meant it to be served."""
    far: bool = False
    """It is that, and scores otherwise than float32 by more than `DRIFT` or the yardstick's own limit."""

    @property
    def kept(self) -> bool:
        """Whether the promoted copy has it: a reduced precision only where it was measured to be quicker."""
        return not self.own or (self.measured.times_reference or 0) >= LEAST_GAIN

    def to_json(self) -> dict[str, Any]:
        """Plain values; numbers that are not finite become null."""
        facts = {"golden_cosine": self.golden_cosine, "drifts": dict(self.drifts), "kept": self.kept}
        return {**asdict(self.measured), **finite(facts)}


@dataclass(frozen=True, kw_only=True)
class Engines:
    """What came of a machine's pairs, and what a promoted copy carries of it."""

    machine: Machine
    check: Check
    engines: Sequence[Engine] = ()
    """Empty where there is float32 on ONNX Runtime alone, or the check could not be made."""

    def dropped(self, candidate: Bundle) -> list[str]:
        """The graphs of the candidate that the copy does without."""
        slow = [engine.measured.precision for engine in self.engines if not engine.kept]
        return [candidate.graphs[precision].relative_to(candidate.folder).as_posix() for precision in slow]

    def documents(self, candidate: Bundle) -> dict[str, bytes]:
        """The table of engines as `models.runtimes` reads it, by its name in the bundle; none where there is none.

        What another machine barred of the candidate, and this one could not judge, stays barred.
        """
        kept = [engine for engine in self.engines if engine.kept]
        if not kept:
            return {}
        measured = [engine.measured for engine in kept]
        choice = Choice(fastest(measured, among=[row.pair for row in measured]), measured)
        rows = [engine.to_json() | row for engine, row in zip(kept, choice.table(), strict=True)]
        judged = {engine.measured.pair for engine in self.engines}
        before = {pair: why for pair, why in barred(candidate).items() if pair not in judged}
        rows += [{**pair._asdict(), "barred": why} for pair, why in before.items()]
        content = {"host": cache.host(self.machine.options), "measured": rows}
        return {ENGINES: (json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()}

    def remember(self, copy: Bundle) -> None:
        """A server on this host that is told to serve `copy` finds it measured: it need not measure under traffic."""
        measured = [replace(engine.measured, barred=None) for engine in self.engines if engine.kept]
        if measured:
            keep(copy, self.machine.options, measured)


def tried(candidate: Bundle, judges: Judges, machine: Machine) -> Engines:
    """Every pair of the machine on the bundle; nothing is measured where there is float32 on ONNX Runtime alone.

    What drifts is barred. Only a graph of the bundle itself that does, or does not run, refuses the bundle.
    """
    try:
        engines = _judged(candidate, judges, machine)
    except Exception as error:  # the runtimes' errors have no class in common
        failed = Check(name=NAME, passed=False, says=f"could not be made: {first_line(error)}")
        return Engines(machine=machine, check=failed)
    numbers = {"limits": dict(judges.yardstick.limits), "engines": [engine.to_json() for engine in engines]}
    says = "; ".join(_said(engine) for engine in engines) or f"there is {REFERENCE} alone"
    check = Check(name=NAME, passed=not any(engine.far for engine in engines), says=says, numbers=numbers)
    return Engines(machine=machine, check=check, engines=engines)


def _judged(candidate: Bundle, judges: Judges, machine: Machine) -> list[Engine]:
    graphs = machine.graphs(candidate, machine.options)
    if len(graphs) == 1:
        return []
    prompts = candidate.manifest.prompts
    rows = compared(graphs, probes(candidate), patient=True, told=partial(told, bundle=candidate), clock=machine.clock)
    float32 = judges.yardstick.scores(judges.watched(graphs[REFERENCE]()), prompts)

    def scored(encode: Encode) -> dict[str, float]:
        scores = judges.yardstick.scores(judges.watched(encode), prompts)
        return {metric: score - float32[metric] for metric, score in scores.items()}

    return [_judged_one(candidate, row, graphs[row.pair], scored, judges.yardstick.limits) for row in rows]


def _judged_one(
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
    except Exception as error:  # as above
        if own:
            raise
        return Engine(measured=replace(row, barred=f"can't be judged: {told(error, candidate)}"), own=own)
    barred = _bar(cosine, drifts, limits)
    far = own and not all(abs(drift) <= max(DRIFT, limits[metric]) for metric, drift in drifts.items())
    return Engine(measured=replace(row, barred=barred), golden_cosine=cosine, drifts=drifts, own=own, far=far)


def _bar(cosine: float, drifts: Mapping[str, float], limits: Mapping[str, float]) -> str | None:
    """Why a pair is not to serve the bundle; NaN is a reason, too."""
    if not cosine >= GOLDEN_COSINE:
        return f"cosine {cosine:.5f} to a golden vector, below {GOLDEN_COSINE}"
    far = [metric for metric, drift in drifts.items() if not abs(drift) <= limits[metric]]
    if not far:
        return None
    return "drifts from float32 by " + ", ".join(
        f"{drifts[metric]:+.2f} points of {metric}, more than {limits[metric]:g}" for metric in far
    )


def _said(engine: Engine) -> str:
    row = engine.measured
    if row.pair == REFERENCE:
        return f"{REFERENCE} is what they are held to"
    figures = [f"{drift:+.2f} {metric}" for metric, drift in engine.drifts.items()]
    figures += [f"{row.times_reference:.2f} times as fast"] if row.times_reference else []
    shortcoming = row.shortcoming or (None if engine.kept else f"left out: less than {LEAST_GAIN} times as fast")
    return f"{row.pair} {', '.join(figures)}" + (f" (passed over: {shortcoming})" if shortcoming else "")
