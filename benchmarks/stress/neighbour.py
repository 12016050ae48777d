"""The trial of isolated keys: one key searches and uploads while another key sends costly requests."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from http.client import HTTPConnection, HTTPException
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from operator import add
from subprocess import TimeoutExpired
from typing import Any

from benchmarks.serving.client import Address, ReplyError
from benchmarks.stress.costly import CORPUS, JSON, LINES, Costly, documents, requests
from benchmarks.stress.server import Server
from benchmarks.stress.trial import Bound, Texts, p99, repeated
from serving.commands.server import SECONDS_TO_ASK, SECONDS_TO_SEND
from serving.settings import Settings

CALLERS = 16
"""Number of callers that send costly requests."""
GOOD, COSTLY = "good", CORPUS
KEYS = {name: f"iso_{name}" for name in (GOOD, COSTLY)}
"""Secrets of the keys by name. Each key may use the corpora whose names begin with its own name."""
SLOWER = 5.0
"""Maximum ratio of the p99 of the good key's searches to its p99 in quiet periods."""
UPLOADS = 10
"""Number of searches of the good key for each of its uploads."""
PAUSE = 0.02
"""Seconds between the requests of the good key."""
REFUSED = 0.1
"""Seconds that a caller waits after a refusal, because another trial tests floods."""
NICE = 5
"""Nice value of the costly callers' process, with which the good key's caller gets CPU time first."""
CALM = 0.2
"""Seconds without a runnable thread after which a server counts as idle."""
WARM_UP = 2.0
"""Seconds of searches before the first measurement, because the first searches take several times as long."""
DRAIN = Settings().drain_seconds
ENDING = 2 * SECONDS_TO_ASK + SECONDS_TO_SEND + 2.0
"""Maximum seconds between the end of the drain and the end of the process: late callers, pending answers, closing."""
MEMORY_MB = 1500
PATIENCE = 60.0
"""Seconds without an answer after which a caller hangs up."""


def neighbour(
    server: Server, _: Texts, seconds: float, only: Collection[str] = (), *, together: bool = False
) -> list[Bound]:
    """Search and upload with one key while another key sends every costly request that it may send.

    The other key sends the kinds of requests one after another, or all kinds `together`. `only` selects kinds. The
    result is the requirements with their measurements.

    Raises:
        SystemExit: no kind has one of the names.
    """
    with closing(Caller(server, KEYS[GOOD])) as good, closing(Caller(server, KEYS[COSTLY])) as costly:
        kinds = _settled(good, costly)
        if unknown := set(only) - kinds.keys():
            raise SystemExit(f"no kind {', '.join(sorted(unknown))}; available: {', '.join(kinds)}")
        parts = {name: [kind] for name, kind in kinds.items() if name in (only or kinds)}
        return _tried(server, good, {"all of them": [*kinds.values()]} if together else parts, seconds)


def _tried(server: Server, good: Caller, kinds: Mapping[str, Sequence[Costly]], seconds: float) -> list[Bound]:
    """Measure the good key's searches beside each kind of costly requests.

    The searches are compared with those in the quiet periods before and after each kind, because other load on the
    machine varies.
    """
    turn, found, memory_mb = seconds / (1.5 * len(kinds) + 0.5), list[Bound](), [0]

    def watch() -> None:
        with suppress(OSError):  # The server has ended.
            memory_mb.append(server.memory_mb)

    with repeated(watch, every=0.1):
        _calm(server)
        warm_up = good.working(WARM_UP)
        quiet, beside = [good.working(turn / 2)], list[Worked]()
        for name, kind in kinds.items():
            with _sent(kind, server):
                beside.append(good.working(turn))
            _calm(server)
            quiet.append(good.working(turn / 2))
            around = quiet[-2] + quiet[-1]
            slower, more = beside[-1].p99 / around.p99, beside[-1].cpu_p99 / around.cpu_p99
            found.append(Bound(f"p99 of a search beside {name}, of the quiet", slower, SLOWER))
            found.append(
                Bound(f"p99 of the server's CPU time during a search beside {name}, of the quiet", more, SLOWER)
            )
            print(*found[-2:], sep="\n  ", flush=True)
        listed = good.json("GET", f"/corpora/{GOOD}")["documents"]
        with _sent([kind for part in kinds.values() for kind in part], server):
            time.sleep(min(turn, 2.0))
            server.process.send_signal(signal.SIGTERM)
            told = time.monotonic()
            with suppress(TimeoutExpired):
                server.process.wait(2 * (DRAIN + ENDING))
            gone = time.monotonic() - told
    whole = reduce(add, [warm_up, *quiet, *beside])
    return [
        Bound("ms, p99 of a search while nobody else asks", 1000 * reduce(add, quiet).p99),
        Bound("ms, p99 of the server's CPU time during such a search", 1000 * reduce(add, quiet).cpu_p99),
        *found,
        Bound("requests of the good key that failed", whole.failed, 0),
        Bound("documents of the good key that were lost", 1 + whole.stored - listed, 0),
        Bound("MB of memory at most", max(memory_mb), MEMORY_MB),
        Bound("seconds until it was gone after SIGTERM", gone, DRAIN + ENDING),
        Bound("exit status", abs(server.process.returncode or 0) if server.process.poll() is not None else math.inf, 0),
    ]


def _calm(server: Server) -> None:
    """Wait until the server has finished all requests and jobs. A thread that waits for a CPU counts as busy."""
    ends, since = time.monotonic() + PATIENCE, time.monotonic()
    while time.monotonic() < min(ends, since + CALM):
        time.sleep(CALM / 20)
        since = since if server.idle else time.monotonic()


def _settled(good: Caller, costly: Caller) -> Mapping[str, Costly]:
    """Fill both corpora and prepare the costly requests."""
    for caller, name, rows in (
        (good, GOOD, b'{"id": "first", "text": "a first one"}\n'),
        (costly, COSTLY, documents()),
    ):
        caller.json("PUT", f"/corpora/{name}", b"{}", JSON)
        caller.finished(caller.json("POST", f"/corpora/{name}/documents?async=true", rows, LINES))
    job = costly.finished(costly.json("POST", f"/corpora/{COSTLY}/snapshots"))
    (listed,) = costly.json("GET", f"/corpora/{COSTLY}/snapshots")["snapshots"]
    return requests(costly.asked("GET", f"/corpora/{COSTLY}/snapshots/{listed['id']}")[1], job["id"])


@dataclass
class Worked:
    """Latencies, CPU times and counts of the good key's requests."""

    latencies: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """CPU seconds of the server per search, which exclude other work on the machine."""
    failed: int = 0
    stored: int = 0

    def __add__(self, other: Worked) -> Worked:
        return Worked(
            self.latencies + other.latencies,
            self.cpu + other.cpu,
            self.failed + other.failed,
            self.stored + other.stored,
        )

    @property
    def p99(self) -> float:
        return p99(self.latencies)

    @property
    def cpu_p99(self) -> float:
        return p99(self.cpu)


class Caller:
    """A connection with one key."""

    def __init__(self, server: Server, key: str) -> None:
        self._server, self._key = server, key
        self._connection = HTTPConnection(server.address.host, server.address.port, timeout=PATIENCE)
        self._numbers = itertools.count()

    def asked(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send a request, and return status and body of the answer."""
        self._connection.request(method, path, body, {**(headers or {}), **_authorization(self._key)})
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        self._connection.close()

    def json(self, *request: Any) -> Any:
        """Send a request, and return the answer's JSON.

        Raises:
            ReplyError: the status is not a success.
        """
        status, body = self.asked(*request)
        if status >= 300:
            raise ReplyError(f"{request[:2]}: {status} {body[:300].decode(errors='replace')}")
        return json.loads(body)

    def finished(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """Wait until a job has finished, and return it."""
        while job["state"] in ("queued", "running"):
            time.sleep(0.1)
            job = self.json("GET", f"/jobs/{job['id']}")
        return job

    def working(self, seconds: float) -> Worked:
        """Search alternately in dense and hybrid mode, with occasional uploads, for the given seconds."""
        found, ends = Worked(), time.monotonic() + seconds
        while time.monotonic() < ends:
            number = next(self._numbers)
            mode = ("dense", "hybrid")[number % 2]
            began, used = time.monotonic(), self._server.cpu_clock
            status, _ = self._answered(f"/corpora/{GOOD}/search", {"query": f"one of {number}", "mode": mode})
            found.latencies.append(time.monotonic() - began)
            found.cpu.append(self._server.cpu_clock - used)
            found.failed += status != 200
            if number % UPLOADS == 0:
                rows = {"documents": [{"id": str(number), "text": f"the document {number}"}]}
                status, _ = self._answered(f"/corpora/{GOOD}/documents", rows)
                found.failed += status != 200
                found.stored += status == 200
            time.sleep(PAUSE)
        return found

    def _answered(self, path: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        try:
            return self.asked("POST", path, json.dumps(body).encode(), JSON)
        except (OSError, HTTPException):
            self._connection.close()
            return 0, b""


@contextmanager
def _sent(kinds: Sequence[Costly], server: Server) -> Iterator[None]:
    """Let callers send the requests `kinds` in turn until the block ends. Pending requests are then dropped.

    The callers run in another process, so that they do not block the good key's caller by the interpreter lock.
    """
    context = get_context("spawn")
    calling = context.Event()
    process = context.Process(target=_send, args=(kinds, server.address, calling), daemon=True)
    process.start()
    try:
        if not calling.wait(PATIENCE):
            raise RuntimeError("the process of the costly callers did not start")
        yield
    finally:
        process.kill()
        process.join()


def _send(kinds: Sequence[Costly], address: Address, calling: Event) -> None:
    os.nice(NICE)
    numbers = itertools.count(time.time_ns())
    for first in range(CALLERS):
        threading.Thread(
            target=_send_each, args=(itertools.islice(itertools.cycle(kinds), first, None), address, numbers)
        ).start()
    calling.set()


def _send_each(kinds: Iterator[Costly], address: Address, numbers: Iterator[int]) -> None:
    for kind in kinds:
        path, content, headers = kind.numbered(next(numbers))
        with closing(HTTPConnection(address.host, address.port, timeout=PATIENCE)) as connection:
            try:
                connection.request(kind.method, path, content, headers | _authorization(KEYS[COSTLY]))
                if not kind.read:
                    time.sleep(PATIENCE)
                answer = connection.getresponse()
                answer.read()
                refused = answer.status >= 400
            except (OSError, HTTPException):
                refused = True
        if refused:
            time.sleep(REFUSED)


def _authorization(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}
