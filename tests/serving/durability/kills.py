"""`kill -9` at random moments and at every named place, during writes, deletions and searches."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.serving.durability.bounds import Bound, Outcome, nothing_wrong
from tests.serving.durability.chores import Chores
from tests.serving.durability.fakes import FIRST, OPTIONS, SECOND
from tests.serving.durability.places import PLACES
from tests.serving.durability.server import BrokenError, Home, NotReadyError, home
from tests.serving.durability.traffic import Traffic

WRITERS, READERS = 4, 2
LARGE = 30
"""Passages from which a corpus has a built index. The number is small, so that indexes are built all the time."""
PATIENCE = 6.0
"""Seconds to wait for a place. After that the server is killed wherever it is."""
KILLED = -9


def kills(folder: Path, times: int, places: Sequence[str] = PLACES) -> Outcome:
    """Kill the server repeatedly: alternately at a random moment, and at the places in turn."""
    at = home(folder, module="tests.serving.durability.fakes", options=(*OPTIONS, "--exact-below", str(LARGE)))
    traffic = Traffic.of(WRITERS)
    chores = Chores.of(traffic, (FIRST, SECOND))
    killing, reached = Killing(at, traffic, chores, random.Random(times)), Counter[str]()
    try:
        for kill in range(times):
            reached[killing.once(places[kill // 2 % len(places)] if kill % 2 else None)] += 1
        with at.server() as server:
            traffic.check(server)
            chores.check(server)
    except (NotReadyError, BrokenError) as error:
        traffic.verdict.note("broken", f"after {reached.total()} kills: {error}")
    bounds = [Bound("kills", reached.total(), times, at_least=True), *nothing_wrong(traffic.verdict)]
    details = {
        "killed": dict(sorted(reached.items())),
        **traffic.report(),
        "slowest start s": round(killing.slowest, 2),
        "chores": dict(chores.done),
    }
    return Outcome(bounds, details)


@dataclass
class Killing:
    """A server that is killed again and again."""

    at: Home
    traffic: Traffic
    chores: Chores
    rng: random.Random
    slowest: float = 0.0
    """Maximum seconds of a start."""

    def once(self, place: str | None) -> str:
        """Start, check the data, and work until the kill.

        Return its place.

        Raises:
            NotReadyError, BrokenError: it ended in another way, or answers with errors.
        """
        turn = self.rng.randint(1, 40) if place and place.endswith("-commit") else self.rng.randint(1, 2)
        armed = {"ISOSPHERE_FAILPOINTS": f"{place}=kill@{turn}"} if place else {}
        with self.at.server(armed, wait=False) as server:
            try:
                server.wait_until_ready()
                self.slowest = max(self.slowest, server.seconds)
                self.traffic.check(server)
                self.chores.check(server)
            except (NotReadyError, httpx.TransportError):
                if server.process.wait(10) != KILLED:
                    raise
                return f"{place}, at the start"
            timer = threading.Timer(PATIENCE if place else self.rng.uniform(0.02, 1.0), server.process.kill)
            timer.start()
            with self.chores.beside(server):
                self.traffic.run(server, READERS, 2 * PATIENCE)
            in_time = timer.is_alive()
            timer.cancel()
            self.traffic.hear(server)
            if place is None:
                return "random"
            return place if in_time else f"{place}, not reached"
