"""The trial of overload: an open loop with more requests than a server can answer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from benchmarks.serving.client import PATIENCE, Address, Pool, ReplyError, Sample, closed_loop, status
from benchmarks.serving.loads import Request
from benchmarks.stress.server import Server
from benchmarks.stress.trial import Bound, Texts, p99
from models.runtimes.base import CPU_BATCH_TOKENS, Options

QUEUE_TOKENS = 40_000
"""Maximum tokens in the queue of the flooded server, which are a second or two of one core's work."""


@dataclass
class Flood:
    """The results of an open loop above the server's capacity."""

    statuses: Counter[int] = field(default_factory=Counter)
    broken: int = 0
    """Connections that ended without an answer."""
    sent: int = 0
    accepted: Sample = field(default_factory=Sample)
    cpu_seconds: float = 0.0
    """CPU seconds of this client, which may share CPUs with the server."""


def flood(address: Address, requests: Iterator[Request], rate: float, seconds: float) -> Flood:
    """Send requests at a steady rate, on a new connection if none is idle."""
    came, spent = Flood(), time.thread_time()
    with Pool(address, 4096) as pool:
        began = time.perf_counter()
        while pool.busy or time.perf_counter() < began + seconds:
            now = time.perf_counter()
            while came.sent < rate * (min(now - began, seconds)) and not pool.full:
                pool.send(next(requests), now)
                came.sent += 1
            try:
                for request, latency, reply in pool.replies(1 / rate if now < began + seconds else PATIENCE):
                    came.statuses[status(reply)] += 1
                    if status(reply) == 200:
                        came.accepted.add(request, latency, reply)
            except (ReplyError, OSError):
                came.broken += 1
                break
        came.accepted.seconds = time.perf_counter() - began
    came.cpu_seconds = time.thread_time() - spent
    return came


def overload(server: Server, texts: Texts, seconds: float) -> list[Bound]:
    """Send ten times the server's capacity, and check throughput and clean rejection of the rest."""
    calm = p99(closed_loop(server.address, texts.singles, 1, 3.0).latencies)
    before = server.memory_mb
    peaks = [_peak(server, texts, max(3.0, seconds / 10))]
    capacity = peaks[0].rate
    cpu = server.cpu_seconds
    came = flood(server.address, texts.mixed, 10 * capacity / 32, seconds)
    cpu, ended, recovered = server.cpu_seconds - cpu, time.perf_counter(), 0.0
    while p99(closed_loop(server.address, texts.singles, 1, 1.0).latencies) > 1.5 * calm:
        if (recovered := time.perf_counter() - ended) > 30:
            break
    # The peak is measured again after the flood, because other load on the machine varies.
    peaks.append(_peak(server, texts, max(3.0, seconds / 10)))
    accepted = came.accepted
    in_batches = 2 * Options(threads=server.cpus).cpu_streams * CPU_BATCH_TOKENS
    longest = (QUEUE_TOKENS + in_batches) / (accepted.tokens / accepted.seconds)
    goodput = accepted.texts / accepted.seconds / fmean(one.rate for one in peaks)
    goodput_by_cpu = accepted.texts / max(cpu, 1e-9) / fmean(one.texts_per_cpu_second for one in peaks)
    cpus_at_peak = fmean(one.cpus for one in peaks)
    unexpected = sum(count for code, count in came.statuses.items() if code not in (200, 429, 503))
    return [
        Bound("answers other than 200, 429, 503", unexpected, 0),
        Bound("connections reset", came.broken, 0),
        Bound("exits", int(server.process.poll() is not None), 0),
        Bound("came, of ten times", came.sent / (10 * capacity / 32 * seconds), 0.9, at_least=True),
        Bound("goodput, of the peak before and after", goodput, 0.9, at_least=True),
        Bound("the same by the server's CPU seconds", goodput_by_cpu, 0.9, at_least=True),
        Bound("CPUs that the server had in the flood, of those at the peak", cpu / accepted.seconds / cpus_at_peak),
        Bound("CPUs that the client of the flood took", came.cpu_seconds / accepted.seconds),
        Bound(
            "p99 of the accepted, of queue and two batches a stream at this rate",
            p99(accepted.latencies) / longest,
            1.0,
        ),
        Bound("seconds until a single is as quick as before", recovered, 5.0),
        Bound("memory, of before", server.memory_mb / before, 1.2),
    ]


class Peak(NamedTuple):
    """The throughput of a server with 16 callers."""

    rate: float
    """Texts per second."""
    texts_per_cpu_second: float
    cpus: float
    """Mean number of CPUs in use."""


def _peak(server: Server, texts: Texts, seconds: float) -> Peak:
    cpu = server.cpu_seconds
    sample = closed_loop(server.address, texts.mixed, 16, seconds)
    cpu = server.cpu_seconds - cpu
    return Peak(sample.texts / sample.seconds, sample.texts / max(cpu, 1e-9), cpu / sample.seconds)
