"""An open loop of more requests than anybody could serve."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.client import Address, Pool, ReplyError, Sample, status
from benchmarks.loads import Request


@dataclass
class Flood:
    """What came of an open loop that nobody could serve."""

    statuses: Counter[int] = field(default_factory=Counter)
    broken: int = 0
    """Connections that ended without an answer."""
    sent: int = 0
    accepted: Sample = field(default_factory=Sample)


def flood(address: Address, requests: Iterator[Request], rate: float, seconds: float) -> Flood:
    """Requests at a steady rate, each on a connection of its own if none is idle."""
    came = Flood()
    with Pool(address, 4096) as pool:
        began = time.perf_counter()
        while pool.busy or time.perf_counter() < began + seconds:
            now = time.perf_counter()
            while came.sent < rate * (min(now - began, seconds)) and not pool.full:
                pool.send(next(requests), now)
                came.sent += 1
            try:
                for request, latency, reply in pool.replies(1 / rate if now < began + seconds else 60.0):
                    came.statuses[status(reply)] += 1
                    if status(reply) == 200:
                        came.accepted.add(request, latency, reply)
            except (ReplyError, OSError):
                came.broken += 1
                break
        came.accepted.seconds = time.perf_counter() - began
    return came
