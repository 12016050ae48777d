"""Embedding over HTTP: our server, other servers and upper bounds, under every load of `benchmarks.serving.loads`."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.serving.client import ReplyError, Sample
from benchmarks.serving.contestants import BUNDLE, OURS, Absent, Contestant, Spec, Turn, specs, started
from benchmarks.serving.loads import CAPACITY, Load, Population, populations, prepared, selected
from benchmarks.serving.processes import Machine, cpu_seconds, memory_mb
from models.bundle import bundle
from models.bundle.tokenizer import Tokenizer
from models.encoder.encoder import Encoder
from training.checkpoints.speed import OperationCount, matmul_peak
from training.machine.hardware import autocast_dtype

MINUTES = 14.0
"""Time limit in minutes. After the first round, a load is skipped if its previous duration would exceed the limit."""
IDLE_SECONDS = 2.0
CHECKED = 8
"""Number of texts of each population for which contestants' vectors are compared with our server's."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Choice:
    """The selected loads, contestants and durations of a measurement.

    Raises:
        ValueError: a load or contestant does not exist; there is no round or no time.
    """

    loads: Sequence[str] = ()
    """Names or prefixes (such as `singles`) of loads. Empty means all loads."""
    contestants: Sequence[str] = ()
    """Names of the contestants that are compared with our server. Empty means all contestants."""
    rounds: int = 3
    seconds: float = 1.0
    """Seconds of a contestant's turn, and twice as many in an open loop. Pending requests are completed afterwards."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or not 0 < self.seconds < math.inf:
            raise ValueError(f"{self.rounds} rounds of {self.seconds:g} seconds are too little for a measurement")
        selected(self.loads)
        if self.contestants:
            _chosen(self.contestants)

    @property
    def whole(self) -> bool:
        """True if the measurement is complete enough to be stored."""
        return self == Choice()


@dataclass(frozen=True)
class Taken:
    """The results and costs of one turn."""

    sample: Sample
    seconds: float
    """Seconds between the two readings of the CPU times below."""
    cpu_s: float
    """CPU seconds used by the contestant's processes."""
    client_cpu_s: float
    elsewhere_cpu_s: float
    """CPU seconds used by everything else on the machine, including steal."""
    pressure: float | None
    """Fraction of the time in which some process was ready to run and had no CPU."""


@dataclass
class Field:
    """The running contestants, and facts about all contestants."""

    running: dict[str, Contestant] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Facts about each contestant except its speed. For a contestant that is not running, the reason is stored."""


Turns = dict[str, dict[str, dict[int, Taken]]]
"""Results by load, contestant and round."""
Failures = dict[str, dict[str, str]]
"""Error messages by load and contestant."""


def measure(choice: Choice = Choice()) -> dict[str, Any]:
    """Start all servers, measure them in turns, and return the figures, each of which is a median over rounds.

    Raises:
        Absent: our own server does not start.
    """
    ends = time.monotonic() + 60 * MINUTES
    source = bundle.load(BUNDLE)
    tokenizer = Tokenizer(source.tokenizer_file, max_length=source.manifest.max_length)
    texts, loads = populations(tokenizer), selected(choice.loads)
    *_, figures = compared(_chosen(choice.contestants), loads, texts, tokenizer.max_length, choice=choice, ends=ends)
    ceilings = _chip(texts)
    for name, load in loads.items():
        figures["loads"][name] = {"chip_texts_per_s": ceilings[load.texts], **figures["loads"][name]}
    return {
        "setting": (
            f"all-MiniLM-L6-v2; interleaved rounds, {choice.seconds:g} s a turn, twice that in an open loop; "
            "client and servers share the CPUs; bodies and replies are OpenAI's JSON; versions of the peers: "
            "benchmarks/peers/*.txt, of st_torch and bare_*: as above"
        ),
        "figures": figures,
    }


def compared(
    chosen: Mapping[str, Spec],
    loads: Mapping[str, Load],
    texts: Mapping[str, Population],
    max_length: int,
    *,
    choice: Choice,
    ends: float,
) -> Iterator[dict[str, Any]]:
    """Start all contestants, beginning with our server. Yield the figures after every round.

    No load is started that would end after `ends`.

    Raises:
        Absent: our own server does not start.
    """
    with ExitStack() as stack:
        contestants = _start(stack, chosen, texts, max_length)
        _idle(contestants)
        for turns, failures in _rounds(contestants, loads, texts, choice, ends):
            for name, contestant in contestants.running.items():
                contestants.facts[name]["memory_mb"] = memory_mb(contestant.pid)
            yield {
                "contestants": contestants.facts,
                "loads": {
                    name: {
                        **{one: _figures(taken, turns[name].get(OURS, {})) for one, taken in turns[name].items()},
                        **failures[name],
                    }
                    for name in loads
                },
            }


def _chosen(names: Sequence[str]) -> dict[str, Spec]:
    everyone = specs()
    if unknown := set(names) - set(everyone):
        raise ValueError(f"no contestant {', '.join(sorted(unknown))}; available: {', '.join(everyone)}")
    return {name: spec for name, spec in everyone.items() if not names or name in {OURS, *names}}


def _start(stack: ExitStack, chosen: Mapping[str, Spec], texts: Mapping[str, Population], max_length: int) -> Field:
    """Start the contestants, beginning with our server, and ask each for the vectors of the same texts."""
    probe = [text for population in texts.values() for text in population.texts[:CHECKED]]
    whole = [tokens < max_length for population in texts.values() for tokens in population.tokens[:CHECKED]]
    contestants, ours = Field(), np.empty(0)
    for name, spec in chosen.items():
        facts: dict[str, Any] = {"what": spec.note}
        contestants.facts[name] = facts
        try:
            # A contestant that fails is stopped at once, so that it uses no CPU time of the others.
            with ExitStack() as trial:
                cache = Path(trial.enter_context(TemporaryDirectory()))
                starting = partial(started, spec, texts, max_length, probe[0], cache)
                if spec.remembers:
                    with ExitStack() as once:
                        _, facts["first_start_s"] = _timed(once, starting())
                contestant, facts["second_start_s" if spec.remembers else "first_start_s"] = _timed(trial, starting())
                vectors = contestant.embed(probe)
                ours = vectors if name == OURS else ours
                if spec.embeds:
                    compared = whole if spec.cuts_off_sep else slice(None)
                    facts["smallest_cosine_to_ours"] = _checked(vectors[compared], ours[compared])
                facts |= contestant.about()
                stack.enter_context(trial.pop_all())
        except (Absent, ReplyError, OSError, ValueError) as error:
            if name == OURS:
                raise
            facts["does_not_take_part"] = f"{type(error).__name__}: {error}"
        else:
            contestants.running[name] = contestant
        print(f"  {name}: {facts}", flush=True)
    return contestants


def _timed(stack: ExitStack, starting: AbstractContextManager[Contestant]) -> tuple[Contestant, float]:
    """Start a contestant until `stack` is closed, and return it with the seconds of its start."""
    began = time.monotonic()
    return stack.enter_context(starting), round(time.monotonic() - began, 2)


def _checked(vectors: np.ndarray[Any, Any], ours: np.ndarray[Any, Any]) -> float:
    cosine = float(((vectors * ours).sum(axis=1) / np.linalg.norm(vectors, axis=1)).min())
    if not cosine >= bundle.GOLDEN_COSINE:
        raise Absent(f"its vectors differ from ours: the smallest cosine is {cosine:.4f}")
    return round(cosine, 6)


def _idle(contestants: Field) -> None:
    """Measure the CPU use of each contestant without requests. One that polls would slow the others."""
    before = {name: cpu_seconds(one.pid) for name, one in contestants.running.items()}
    time.sleep(IDLE_SECONDS)
    for name, one in contestants.running.items():
        contestants.facts[name]["idle_cpu"] = round((cpu_seconds(one.pid) - before[name]) / IDLE_SECONDS, 3)


def _rounds(
    contestants: Field, loads: Mapping[str, Load], texts: Mapping[str, Population], choice: Choice, ends: float
) -> Iterator[tuple[Turns, Failures]]:
    """Run all loads in each round, with a new order of contestants for each load, and yield the results so far."""
    turns: Turns = {load: defaultdict(dict) for load in loads}
    failures: Failures = {load: {} for load in loads}
    requests = {name: prepared(texts, loads) for name in contestants.running}
    order, took, rates = random.Random(0), dict.fromkeys(loads, 0.0), dict[str, float]()
    for number in range(choice.rounds):
        for name, load in loads.items():
            load_began = time.monotonic()
            if load_began + took[name] > ends and number:
                continue
            taking = [one for one, contestant in contestants.running.items() if contestant.takes(load)]
            for one in order.sample(taking, len(taking)):
                if load.capacity is not None and one not in rates:
                    failures[name][one] = f"the rate is a fraction of the capacity, but {CAPACITY} failed"
                if one in failures[name]:
                    continue
                contestant = contestants.running[one]
                turn = Turn(load, requests[one][name], choice.seconds)
                if load.capacity is not None:
                    turn = replace(turn, seconds=2 * choice.seconds, rate=load.capacity * rates[one], seed=number)
                try:
                    taken = _take(contestant, turn)
                except (ReplyError, Absent, OSError) as error:
                    failures[name][one] = f"failed in round {number + 1}: {error}"
                    continue
                turns[name][one][number] = taken
                if name == CAPACITY:
                    rates[one] = _rate(taken)
            took[name] = time.monotonic() - load_began
            print(f"  round {number + 1}, {name}: {took[name]:.0f} s", flush=True)
        yield turns, failures


def _take(contestant: Contestant, turn: Turn) -> Taken:
    machine, own, client, began = Machine.now(), cpu_seconds(contestant.pid), time.process_time(), time.perf_counter()
    sample = contestant.take(turn)
    seconds, client = time.perf_counter() - began, time.process_time() - client
    own = cpu_seconds(contestant.pid) - own
    after = Machine.now()
    pressure = None
    if machine.waiting is not None and after.waiting is not None:
        pressure = (after.waiting - machine.waiting) / seconds
    return Taken(sample, seconds, own, client, max(0.0, after.busy - machine.busy - own - client), pressure)


def _figures(taken: Mapping[int, Taken], ours: Mapping[int, Taken]) -> dict[str, float]:
    """Return medians over rounds. Latency percentiles are computed from the requests of all rounds together."""
    latencies = [latency for turn in taken.values() for latency in turn.sample.latencies]
    percentiles = dict(zip((50, 95, 99), np.percentile(latencies, (50, 95, 99)), strict=True)) if latencies else {}
    pressures = [turn.pressure for turn in taken.values() if turn.pressure is not None]
    shared = [number for number in taken if number in ours]
    return {
        "texts_per_s": _median(_rate(turn) for turn in taken.values()),
        "tokens_per_s": _median(turn.sample.tokens / turn.sample.seconds for turn in taken.values()),
        **({f"times_{OURS}": _median(_rate(taken[one]) / _rate(ours[one]) for one in shared)} if shared else {}),
        **{f"p{share}_ms": _rounded(1e3 * value) for share, value in percentiles.items()},
        "rounds": len(taken),
        "requests": len(latencies),
        "cpu_s_per_1000_texts": _median(1e3 * turn.cpu_s / turn.sample.texts for turn in taken.values()),
        "client_cpus": _median(turn.client_cpu_s / turn.seconds for turn in taken.values()),
        "elsewhere_cpus": _median(turn.elsewhere_cpu_s / turn.seconds for turn in taken.values()),
        **({"cpu_pressure": _median(pressures)} if pressures else {}),
    }


def _rate(turn: Taken) -> float:
    return turn.sample.texts / turn.sample.seconds


def _median(values: Iterator[float] | Sequence[float]) -> float:
    return _rounded(statistics.median(values))


def _rounded(value: float) -> float:
    """Round to three significant digits, because further digits would be noise."""
    return float(f"{value:.3g}")


def _chip(texts: Mapping[str, Population]) -> dict[str, dict[str, float]]:
    """Return an upper bound in texts per second: matrix products without padding, at the measured peak speed."""
    work = OperationCount.of(Encoder.load("minilm"))
    dtypes = {"fp32": torch.float32} | ({"bf16": auto} if (auto := autocast_dtype("auto", CPU)) else {})
    return {
        name: {
            precision: _rounded(matmul_peak(CPU, dtype, seconds=1.0) * len(one.tokens) / work.forward(one.tokens))
            for precision, dtype in dtypes.items()
        }
        for name, one in texts.items()
    }
