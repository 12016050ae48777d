"""Trials of a server process under traffic: kills, power loss, concurrency, downtime after a kill."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.stress.trial import Bound
from tests.serving.durability.chores import Chores
from tests.serving.durability.fakes import FIRST, OPTIONS, SECOND
from tests.serving.durability.history import Outcome, nothing_wrong
from tests.serving.durability.server import BrokenError, Home, NotReadyError, Server, home
from tests.serving.durability.shim import LOSSES, Disk, compiled
from tests.serving.durability.traffic import Traffic

PLACES = (
    "store.before-commit",
    "store.after-commit",
    "store.before-create",
    "store.after-create",
    "store.before-copy",
    "store.after-copy",
    "store.before-adopt",
    "store.after-adopt",
    "store.before-swap",
    "store.after-swap",
    "store.before-drop",
    "store.after-drop",
    "store.before-rename",
    "store.after-rename",
    "index.before-save",
    "index.before-manifest",
    "index.after-manifest",
    "index.before-bury",
    "index.compaction",
    "jobs.before-spool",
    "jobs.after-spool",
    "jobs.before-checkpoint",
    "jobs.after-checkpoint",
    "jobs.finished",
    "snapshots.before-pack",
    "snapshots.after-pack",
    "snapshots.before-restore",
    "snapshots.after-restore",
)
"""Places where the server can be killed. A test compares them with the calls in `serving/`."""
KILLED = -9
"""Exit status after `kill -9`."""
PATIENCE = 6.0
"""Seconds to wait for a place. After that the server is killed wherever it is."""
LARGE = 30
"""Passages from which a corpus has a built index. The number is small, so that indexes are built all the time."""
BATCH = 256
"""Documents of an upload request."""
ALLOWED = 5.0
"""Maximum seconds of a recovery per 100,000 documents."""
CORPUS = "/corpora/c"


@dataclass
class Work:
    """A server on a folder with its traffic and chores, which outlive each of its processes."""

    at: Home
    traffic: Traffic
    chores: Chores
    rng: random.Random
    interrupted: Counter[str] = field(default_factory=Counter)
    """Counts of interruptions, by place or kind."""
    slowest: float = 0.0
    """Maximum seconds of a start."""

    @classmethod
    def of(cls, folder: Path, writers: int, seed: int) -> Work:
        """Prepare the work on an empty folder."""
        at = home(folder, module="tests.serving.durability.fakes", options=(*OPTIONS, "--exact-below", str(LARGE)))
        traffic = Traffic.of(writers)
        return cls(at, traffic, Chores.of(traffic, (FIRST, SECOND)), random.Random(seed))

    def check(self, server: Server) -> None:
        """Check after a start that everything acknowledged is there."""
        self.slowest = max(self.slowest, server.seconds)
        self.traffic.check(server)
        self.chores.check(server)

    def outcome(self, what: str, times: int) -> Outcome:
        """Return the outcome: as many interruptions as were asked for, and no errors."""
        bounds = [
            Bound(what, self.interrupted.total(), times, at_least=True),
            *nothing_wrong(self.traffic.verdict),
        ]
        details: dict[str, Any] = {
            what: dict(sorted(self.interrupted.items())),
            **self.traffic.report(),
            "slowest start s": round(self.slowest, 2),
            "chores": dict(self.chores.done),
        }
        return Outcome(bounds, details)


def kills(folder: Path, times: int) -> Outcome:
    """Kill the server repeatedly: alternately at a random moment, and at the places in turn."""
    work = Work.of(folder, writers=4, seed=times)
    try:
        for kill in range(times):
            place = PLACES[kill // 2 % len(PLACES)] if kill % 2 else None
            work.interrupted[_killed(work, place)] += 1
        with work.at.server() as server:
            work.check(server)
    except (NotReadyError, BrokenError) as error:
        work.traffic.verdict.note("broken", f"after {work.interrupted.total()} kills: {error}")
    return work.outcome("kills", times)


def _killed(work: Work, place: str | None) -> str:
    """Start, check the data, and work until the kill. Return its place.

    Raises:
        NotReadyError, BrokenError: the server ended in another way, or answers with errors.
    """
    turn = work.rng.randint(1, 40) if place and place.endswith("-commit") else work.rng.randint(1, 2)
    armed = {"ISOSPHERE_FAILPOINTS": f"{place}=kill@{turn}"} if place else {}
    with work.at.server(armed, wait=False) as server:
        try:
            server.wait_until_ready()
            work.check(server)
        except (NotReadyError, httpx.TransportError):
            if server.process.wait(10) != KILLED:
                raise
            return f"{place}, at the start"
        timer = threading.Timer(PATIENCE if place else work.rng.uniform(0.02, 1.0), server.process.kill)
        timer.start()
        with work.chores.beside(server):
            work.traffic.run(server, 2, 2 * PATIENCE)
        in_time = timer.is_alive()
        timer.cancel()
        work.traffic.hear(server)
        if place is None:
            return "random"
        return place if in_time else f"{place}, not reached"


def power(folder: Path, times: int) -> Outcome:
    """Cut the power repeatedly at random moments, with each kind of loss in turn.

    Unsynced data are lost, and acknowledged data are not.

    Raises:
        NoCompilerError: the C shim can't be compiled.
    """
    work = Work.of(folder, writers=3, seed=times)
    disk = Disk(compiled(folder), work.at.data, folder / "shadow")
    work.at.environment = disk.environment
    disk.settle()
    try:
        for turn in range(times):
            with work.at.server() as server:
                work.check(server)
                with work.chores.beside(server):
                    work.traffic.run(server, 1, work.rng.uniform(0.05, 0.8))
                    server.kill()
                work.traffic.hear(server)
            loss = LOSSES[turn % len(LOSSES)]
            disk.lose(loss, work.rng)
            work.interrupted[loss] += 1
        with work.at.server() as server:
            work.check(server)
    except (NotReadyError, BrokenError) as error:
        work.traffic.verdict.note("broken", f"after {work.interrupted}: {error}")
    return work.outcome("times the power went", times)


def concurrency(folder: Path, seconds: int) -> Outcome:
    """Run eight readers and eight writers for some seconds.

    No request is refused, and every read shows a prefix of each writer's writes.
    """
    traffic = Traffic.of(8)
    with home(folder).server() as server:
        traffic.check(server)
        traffic.run(server, 8, seconds)
        traffic.check(server)
        traffic.hear(server)
        locked = "locked" in server.said() or any("locked" in refusal for refusal in traffic.refusals)
    refused = sum(n for answer, n in traffic.statuses.items() if answer[-3:] not in ("200", "204"))
    bounds = [
        Bound("writes", traffic.statuses["write 200"], seconds, at_least=True),
        Bound("reads", traffic.statuses["read 200"], seconds, at_least=True),
        Bound("answers other than 200, 204", refused, 0),
        Bound("`database is locked` seen", int(locked), 0),
        *nothing_wrong(traffic.verdict),
    ]
    return Outcome(bounds, traffic.report())


def recovery(folder: Path, documents: int) -> Outcome:
    """Kill a server during writes. All documents are there at the first ready, soon, and without the index too."""
    at = home(folder)
    with at.server() as server:
        empty = server.seconds
        with server.client() as client:
            client.put(CORPUS).raise_for_status()
            for start in range(0, documents, BATCH):
                _write(client, start, min(start + BATCH, documents))
            while client.get(CORPUS).raise_for_status().json()["index_details"]["state"] == "building":
                time.sleep(0.1)
        acknowledged = _killed_while_writing(server, documents)
    figures: dict[str, float] = {"start of an empty server s": round(empty, 2)}
    bounds = []
    for kill in ("with its index", "without its index"):
        if kill == "without its index":
            shutil.rmtree(at.data / "indexes", ignore_errors=True)  # A small corpus has no index.
        took, counted, found = _recovered(at, acknowledged)
        bounds += [
            Bound(f"documents lost, {kill}", acknowledged - counted, 0),
            Bound(f"acknowledged last and not found, {kill}", int(not found), 0),
            Bound(f"seconds for each 100,000 documents, {kill}", (took - empty) * 100_000 / acknowledged, ALLOWED),
        ]
        figures[f"first right answer s, {kill}"] = round(took, 2)
    return Outcome(bounds, figures)


def _recovered(at: Home, acknowledged: int) -> tuple[float, int, bool]:
    """Return seconds until the last document was found, the number of documents, and whether it was the first hit."""
    began = time.perf_counter()
    with at.server() as server, server.client() as client:
        asked = {"query": _text(acknowledged - 1), "k": 1}
        hits = client.post(f"{CORPUS}/search", json=asked).raise_for_status().json()["hits"]
        took = time.perf_counter() - began
        counted = client.get(CORPUS).raise_for_status().json()["documents"]
        server.kill()
    return took, counted, bool(hits) and hits[0]["text"] == asked["query"]


def _killed_while_writing(server: Server, start: int) -> int:
    """Return the number of acknowledged documents, including the first `start`."""
    acknowledged = start
    timer = threading.Timer(1.0, server.kill)
    timer.start()
    with server.client() as client:
        try:
            while True:
                _write(client, acknowledged, acknowledged + 1)
                acknowledged += 1
        except httpx.TransportError:
            return acknowledged


def _write(client: httpx.Client, start: int, end: int) -> None:
    documents = [{"id": str(n), "text": _text(n), "metadata": {"n": n}} for n in range(start, end)]
    client.post(f"{CORPUS}/documents", json=documents).raise_for_status()


def _text(n: int) -> str:
    return f"document {n} of the {n % 97}th kind, that of {n % 1009}"
