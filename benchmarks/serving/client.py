"""Load generator with a low CPU cost: it uses one thread and prepared requests, and does not parse replies.

The cost matters because the client shares its CPUs with the measured servers, so it affects every result.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from benchmarks.serving.loads import Request, body

PATIENCE = 120.0
"""Seconds without any reply after which a server counts as stuck."""
MOST_CONNECTIONS = 256
"""Maximum connections of an open loop. The latency of a request includes its wait for a free connection."""


class ReplyError(RuntimeError):
    """A server answered with an error, closed the connection, or did not answer. The message names the case."""


@dataclass
class Sample:
    """Measurements of one contestant (a compared server or library) under one load in one round."""

    seconds: float = 0.0
    """Seconds from the first request to the last reply."""
    texts: int = 0
    tokens: int = 0
    latencies: list[float] = field(default_factory=list)
    """Seconds of each request. In an open loop, they are counted from the time at which the request is due."""

    def add(self, request: Request, latency: float, reply: bytes | bytearray) -> None:
        """Count one reply.

        Raises:
            ReplyError: the reply's status is not 200.
        """
        _checked(reply)
        self.texts += request.texts
        self.tokens += request.tokens
        self.latencies.append(latency)


@dataclass(frozen=True)
class Address:
    """Address of a server's route for embeddings in OpenAI's format."""

    port: int
    path: str
    host: str = "127.0.0.1"
    headers: tuple[str, ...] = ()
    """Header lines of every request, each `name: value`."""


class Connection:
    """A keep-alive connection with at most one pending request."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection((address.host, address.port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = (
            f"POST {address.path} HTTP/1.1\r\nhost: {address.host}:{address.port}\r\n"
            + "".join(f"{header}\r\n" for header in address.headers)
            + "content-type: application/json\r\ncontent-length: %d\r\n\r\n"
        ).encode()
        self._received = bytearray()
        self._awaited: int | None = None

    def send(self, content: bytes) -> None:
        """Send a request. The previous reply must have been read."""
        self._received, self._awaited = bytearray(), None
        self.socket.sendall(self._head % len(content) + content)

    def receive(self) -> bytearray | None:
        """Read available data, and return the reply once it is complete, or None until then.

        The reply includes its head.

        Raises:
            ReplyError: the server closed the connection.
        """
        received = self.socket.recv(1 << 20)
        if not received:
            raise ReplyError("the server closed the connection")
        self._received += received
        if self._awaited is None and (end := self._received.find(b"\r\n\r\n")) >= 0:
            self._awaited = end + 4 + _content_length(bytes(self._received[:end]).lower())
        if self._awaited is None or len(self._received) < self._awaited:
            return None
        return self._received


class Pool:
    """Connections to one server, which are closed at the end of the block."""

    def __init__(self, address: Address, most: int) -> None:
        self._address, self._most = address, most
        self._selector = selectors.DefaultSelector()
        self._idle: list[Connection] = []
        self._asked: dict[Connection, tuple[Request, float]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (*self._idle, *self._asked):
            connection.socket.close()
        self._selector.close()

    @property
    def busy(self) -> bool:
        return bool(self._asked)

    @property
    def full(self) -> bool:
        """Return whether no further request can be sent before a reply arrives."""
        return len(self._asked) >= self._most

    def send(self, request: Request, due: float) -> None:
        """Send a request on an idle connection, or on a new connection."""
        if self._idle:
            connection = self._idle.pop()
        else:
            connection = Connection(self._address)
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._asked[connection] = request, due
        connection.send(request.body)

    def replies(self, timeout: float = PATIENCE) -> Iterator[tuple[Request, float, bytearray]]:
        """Yield each answered request with the seconds since it was due and the reply.

        Wait up to `timeout` seconds for the first reply.
        """
        ready = self._selector.select(timeout)
        if not ready and timeout >= PATIENCE:
            raise ReplyError(f"no reply in {PATIENCE:.0f} seconds")
        for key, _ in ready:
            connection: Connection = key.data
            # No reply is pending, so the server has closed a connection that was idle for too long.
            if connection not in self._asked:
                self._idle.remove(connection)
                self._selector.unregister(connection.socket)
                connection.socket.close()
            elif (reply := connection.receive()) is not None:
                request, due = self._asked.pop(connection)
                self._idle.append(connection)
                yield request, time.perf_counter() - due, reply


def closed_loop(address: Address, requests: Iterator[Request], clients: int, seconds: float) -> Sample:
    """Run `clients` clients for `seconds`, each of which sends its next request as soon as it gets a reply."""
    sample = Sample()
    with Pool(address, clients) as pool:
        began = time.perf_counter()
        for _ in range(clients):
            pool.send(next(requests), began)
        while pool.busy:
            for request, latency, reply in pool.replies():
                sample.add(request, latency, reply)
                if (now := time.perf_counter()) < began + seconds:
                    pool.send(next(requests), now)
        sample.seconds = time.perf_counter() - began
    return sample


def open_loop(address: Address, requests: Iterator[Request], rate: float, seconds: float, seed: int) -> Sample:
    """Send requests at random times, `rate` per second on average, without waiting for replies."""
    sample = Sample()
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(1, round(rate * seconds)))
    with Pool(address, MOST_CONNECTIONS) as pool:
        began = time.perf_counter()
        coming = deque(began + moment for moment in gaps.cumsum())
        while coming or pool.busy:
            while coming and coming[0] <= time.perf_counter() and not pool.full:
                pool.send(next(requests), coming.popleft())
            until_next = coming[0] - time.perf_counter() if coming and not pool.full else PATIENCE
            for request, latency, reply in pool.replies(max(0.0, until_next)):
                sample.add(request, latency, reply)
        sample.seconds = time.perf_counter() - began
    return sample


def embed(address: Address, texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the vectors (N, D) of `texts`.

    Raises:
        ReplyError: see `Connection.receive`.
        OSError: no server listens at the address.
    """
    answer = json.loads(_checked(post(address, body(texts))).partition(b"\r\n\r\n")[2])
    return np.array([row["embedding"] for row in answer["data"]])


def post(address: Address, content: bytes) -> bytearray:
    """Send a request on a new connection, and return the reply with its head."""
    connection = Connection(address)
    try:
        connection.send(content)
        while (reply := connection.receive()) is None:
            pass
        return reply
    finally:
        connection.socket.close()


def status(reply: bytes | bytearray) -> int:
    return int(reply[9:12])


def _checked(reply: bytes | bytearray) -> bytes | bytearray:
    if status(reply) != 200:
        raise ReplyError(reply[:400].decode(errors="replace").replace("\r\n", " "))
    return reply


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise ReplyError("a reply without content-length")
