"""Trials in which something is done to a server while it answers requests."""

from __future__ import annotations

import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from benchmarks.serving.client import Pool, ReplyError, Sample, closed_loop, open_loop, status
from benchmarks.serving.loads import LONGEST, SPECIAL, Request, body
from benchmarks.stress.flood import QUEUE_TOKENS, overload
from benchmarks.stress.neighbour import KEYS, neighbour
from benchmarks.stress.server import Server
from benchmarks.stress.trial import Bound, Planned, Texts, p99, repeated
from models.runtimes.base import CPU_BATCH_TOKENS, Options
from models.runtimes.openvino import LENGTH_STEP

IDLE = 5000
"""Number of idle connections."""
CLOSED_IN = 2.0
"""Maximum seconds in which a server notices closed connections."""
BODY_TIMEOUT = 2.0
"""Body timeout of the server in the trial of slow callers. One byte per second exceeds it."""


def reload(server: Server, texts: Texts, seconds: float) -> list[Bound]:
    """Reload the bundle repeatedly while 16 callers send requests."""
    codes: list[int] = []
    fingerprints: Counter[bytes] = Counter()
    errors = 0
    with repeated(lambda: codes.append(server.post("/admin/reload"))), Pool(server.address, 16) as pool:
        ends = time.perf_counter() + seconds
        for _ in range(16):
            pool.send(next(texts.mixed), time.perf_counter())
        while pool.busy:
            for _, _, reply in pool.replies():
                errors += status(reply) != 200
                head = bytes(reply[: reply.find(b"\r\n\r\n")]).lower().split(b"\r\n")
                fingerprints[b",".join(line for line in head if line.startswith(b"x-model-fingerprint:"))] += 1
                if time.perf_counter() < ends:
                    pool.send(next(texts.mixed), time.perf_counter())
    return [
        Bound("reloads", codes.count(200), 2, at_least=True),
        Bound("reloads refused or failed", len(codes) - codes.count(200), 0),
        Bound("requests that failed", errors, 0),
        Bound("answers without one fingerprint", sum(n for one, n in fingerprints.items() if one.count(b":") != 1), 0),
    ]


def callers(server: Server, texts: Texts, seconds: float) -> list[Bound]:
    """Keep thousands of connections idle, and send 200 bodies at one byte per second."""
    calm = p99(closed_loop(server.address, texts.singles, 4, seconds / 3).latencies)
    place = server.address.host, server.address.port
    with ExitStack() as stack:
        idle = [stack.enter_context(_kept_alive(place)) for _ in range(IDLE)]
        slow = [stack.enter_context(socket.create_connection(place)) for _ in range(200)]
        for one in slow:
            one.sendall(
                b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{"
            )
        left = list(slow)

        def trickle() -> None:
            left[:] = [one for one in left if _sent(one, b" ")]

        with repeated(trickle, every=1.0):
            crowded = p99(closed_loop(server.address, texts.singles, 4, seconds).latencies)
        time.sleep(max(0.0, 3 * BODY_TIMEOUT - seconds))
        return [
            Bound("p99 of the others, of before", crowded / calm, 1.5),
            Bound("slow bodies that were not cut", sum(not _answered(one) for one in slow), 0),
            Bound("idle connections that were cut", sum(_answered(one) for one in idle), 0),
        ]


def lanes(server: Server, texts: Texts, seconds: float) -> list[Bound]:
    """Send single requests beside bulk work."""
    calm = p99(closed_loop(server.address, texts.singles, 1, seconds / 2).latencies)
    alone = closed_loop(server.address, texts.bulk, 1, seconds / 2)
    bulk = replace(server.address, headers=("x-priority: bulk",))
    done: list[Sample] = []
    with repeated(lambda: done.append(closed_loop(bulk, texts.bulk, 1, 0.0))):
        time.sleep(0.5)
        beside = closed_loop(server.address, texts.singles, 1, seconds)
    rate = sum(one.texts for one in done) / sum(one.seconds for one in done)
    return [
        Bound("p99 of a single beside bulk work, of alone", p99(beside.latencies) / calm, 3.0),
        Bound("bulk work beside singles, of its rate alone", rate / (alone.texts / alone.seconds), 0.2, at_least=True),
    ]


def drain(server: Server, texts: Texts, seconds: float) -> list[Bound]:
    """Send SIGTERM during requests of 16 callers, and check that every admitted request is answered."""
    statuses: Counter[int] = Counter()
    broken, told, terminated = 0, 0.0, time.perf_counter() + seconds
    with Pool(server.address, 16) as pool:
        for _ in range(16):
            pool.send(next(texts.mixed), time.perf_counter())
        while pool.busy:
            if terminated and time.perf_counter() > terminated:
                server.process.send_signal(signal.SIGTERM)
                told, terminated = time.perf_counter(), 0.0
            try:
                for _, _, reply in pool.replies():
                    statuses[status(reply)] += 1
                    if not told:
                        pool.send(next(texts.mixed), time.perf_counter())
            except (ReplyError, OSError):
                broken += 1
                break
    server.process.wait(60)
    return [
        Bound("requests that were cut off", broken, 0),
        Bound("answers other than 200 and 503", sum(n for code, n in statuses.items() if code not in (200, 503)), 0),
        Bound("seconds until it was gone", time.perf_counter() - told, 30),
        Bound("exit status", abs(server.process.returncode), 0),
    ]


def soak(server: Server, texts: Texts, seconds: float) -> list[Bound]:
    """Run the server at 70 % of its capacity for a long time, and check that its memory does not grow.

    Every shape of batch is sent first, because each shape allocates memory once.
    """
    ready = server.memory_mb
    for request in _shapes(Options(threads=server.cpus).cpu_streams):
        closed_loop(server.address, iter([request]), 1, 0.0)
    warm = server.memory_mb
    peak = closed_loop(server.address, texts.mixed, 8, 5.0)
    open_loop(server.address, texts.mixed, 0.7 * peak.texts / peak.seconds / 32, seconds / 3, 0)
    time.sleep(CLOSED_IN)
    files, samples = server.open_files, list[tuple[float, int]]()
    with repeated(lambda: samples.append((time.perf_counter() / 60, server.memory_mb)), every=1.0):
        open_loop(server.address, texts.mixed, 0.7 * peak.texts / peak.seconds / 32, 2 * seconds / 3, 1)
    time.sleep(CLOSED_IN)
    slope = float(np.polyfit([minute for minute, _ in samples], [size for _, size in samples], 1)[0])
    return [
        Bound("MB when it was ready", ready),
        Bound("MB after every shape of batch", warm),
        Bound("MB at the end", server.memory_mb),
        Bound("MB a minute", slope, 1.0),
        Bound("descriptors more than after a third", server.open_files - files, 16),
    ]


TRIALS: dict[str, Planned] = {
    "overload": Planned(
        overload,
        60.0,
        ("--max-queued-tokens", str(QUEUE_TOKENS), "--max-request-tokens", str(QUEUE_TOKENS)),
        apart=True,
    ),
    "reload": Planned(reload, 20.0),
    "callers": Planned(callers, 30.0, ("--body-timeout", str(BODY_TIMEOUT))),
    "lanes": Planned(lanes, 20.0),
    "drain": Planned(drain, 5.0),
    "neighbour": Planned(neighbour, 400.0, apart=True, keys=KEYS),
    "soak": Planned(soak, 900.0, apart=True),
}


def _shapes(streams: int) -> Iterator[Request]:
    """Yield a request for each batch shape of mixed texts. A request fills one batch of its shape on every stream."""
    for length in range(LENGTH_STEP, LONGEST + 1, LENGTH_STEP):
        text = " ".join(["a"] * (length - SPECIAL))
        for rows in range(1, CPU_BATCH_TOKENS // length + 1):
            count = rows * streams
            yield Request(body([text] * count), count, count * length)


def _kept_alive(place: tuple[str, int]) -> socket.socket:
    """Open an idle connection that has had one answer, because the server closes a connection without any request."""
    one = socket.create_connection(place)
    one.sendall(b"HEAD /livez HTTP/1.1\r\nhost: a\r\n\r\n")
    answer = one.recv(4096)
    while not answer.endswith(b"\r\n\r\n"):
        answer += one.recv(4096)
    return one


def _sent(one: socket.socket, content: bytes) -> bool:
    try:
        one.sendall(content)
    except OSError:
        return False
    return True


def _answered(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1, socket.MSG_PEEK) is not None
    except BlockingIOError:
        return False
    except OSError:
        return True
