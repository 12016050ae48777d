"""Tests of the benchmarks' HTTP client against minimal servers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise, repeat
from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving.client import Address, Connection, Pool, ReplyError, closed_loop, embed, open_loop
from benchmarks.serving.loads import Request, body

PATH = "/v1/embeddings"
REPLY = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nContent-Length: 11\r\n\r\n{"data":[]}'
SOON = 10.0
REQUEST = Request(body(["a text", "another"]), texts=2, tokens=7)


@contextmanager
def listening() -> Iterator[tuple[socket.socket, Address]]:
    """Yield a listening socket, from which the test itself accepts connections and so controls the order of events."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SOON)
        yield listener, Address(listener.getsockname()[1], PATH)


@contextmanager
def answering(status: int = 200) -> Iterator[tuple[list[str], Address]]:
    """Run a server in a thread, which records the requested paths.

    Its vector of a text is the text's length.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked.append(self.path)
            texts = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
            rows = [{"embedding": [len(text), 1]} for text in texts]
            content = json.dumps({"data": rows} if status == 200 else {"error": "out of memory"}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Do nothing, because nobody reads the log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield asked, Address(server.server_address[1], PATH)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@given(cuts=st.sets(st.integers(1, len(REPLY) - 1)))
def test_a_reply_in_any_number_of_packets_is_one_reply(cuts: set[int]) -> None:
    with ExitStack() as stack:
        listener, address = stack.enter_context(listening())
        connection = Connection(address)
        stack.callback(connection.socket.close)
        server = stack.enter_context(listener.accept()[0])
        edges = [0, *sorted(cuts), len(REPLY)]
        pieces = [REPLY[start:end] for start, end in pairwise(edges)]
        connection.send(REQUEST.body)
        received = []
        for piece in pieces:
            server.sendall(piece)
            received.append(connection.receive())
        assert received == [*repeat(None, len(cuts)), REPLY]


def test_the_request_on_the_wire_is_the_body_under_its_length() -> None:
    with ExitStack() as stack:
        listener, address = stack.enter_context(listening())
        connection = Connection(address)
        stack.callback(connection.socket.close)
        server = stack.enter_context(listener.accept()[0])
        connection.send(REQUEST.body)
        connection.socket.shutdown(socket.SHUT_WR)
        with server.makefile("rb") as wire:
            head, _, content = wire.read().partition(b"\r\n\r\n")
    assert content == REQUEST.body
    assert head.startswith(f"POST {PATH} HTTP/1.1\r\n".encode())
    assert f"content-length: {len(REQUEST.body)}".encode() in head.split(b"\r\n")


def test_an_idle_connection_that_the_server_hangs_up_is_replaced() -> None:
    with ExitStack() as stack:
        listener, address = stack.enter_context(listening())
        pool = stack.enter_context(Pool(address, 2))
        pool.send(REQUEST, 0.0)
        with listener.accept()[0] as idle:
            pool.send(REQUEST, 0.0)
            awaited = stack.enter_context(listener.accept()[0])
            idle.sendall(REPLY)
            assert len(list(pool.replies(SOON))) == 1
            idle.shutdown(socket.SHUT_RDWR)
        assert list(pool.replies(SOON)) == []
        assert pool.busy
        pool.send(REQUEST, 0.0)
        new = stack.enter_context(listener.accept()[0])
        for server in (awaited, new):
            server.sendall(REPLY)
            assert len(list(pool.replies(SOON))) == 1
        assert not pool.busy


def test_a_hang_up_instead_of_a_reply_is_an_error() -> None:
    with listening() as (listener, address), Pool(address, 1) as pool:
        pool.send(REQUEST, 0.0)
        with listener.accept()[0] as server:
            server.sendall(REPLY[:-1])
            assert list(pool.replies(SOON)) == []
            server.shutdown(socket.SHUT_WR)
            with pytest.raises(ReplyError, match="closed the connection"):
                list(pool.replies(SOON))


def test_a_reply_without_a_length_is_an_error() -> None:
    with listening() as (listener, address), Pool(address, 1) as pool:
        pool.send(REQUEST, 0.0)
        with listener.accept()[0] as server:
            server.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            with pytest.raises(ReplyError, match="content-length"):
                list(pool.replies(SOON))


def test_vectors_come_in_the_order_of_the_texts() -> None:
    with answering() as (asked, address):
        assert np.array_equal(embed(address, ["abc", "", "ü"]), [[3, 1], [0, 1], [1, 1]])
    assert asked == [PATH]


def test_a_status_of_500_is_an_error_that_names_it_and_says_what_the_server_said() -> None:
    with answering(500) as (_, address):
        with pytest.raises(ReplyError, match=r"HTTP/1\.1 500 .*out of memory"):
            embed(address, ["a text"])
        with pytest.raises(ReplyError, match=r"HTTP/1\.1 500"):
            closed_loop(address, repeat(REQUEST), clients=2, seconds=0.0)


def test_when_the_time_is_up_each_client_of_a_closed_loop_has_asked_once() -> None:
    with answering() as (asked, address):
        sample = closed_loop(address, repeat(REQUEST), clients=3, seconds=0.0)
    assert (len(asked), len(sample.latencies), sample.texts, sample.tokens) == (3, 3, 6, 21)


@pytest.mark.slow
def test_an_open_loop_asks_as_often_as_its_rate_says_and_awaits_every_reply() -> None:
    with answering() as (asked, address):
        sample = open_loop(address, repeat(REQUEST), rate=2000.0, seconds=0.02, seed=0)
    assert (len(asked), len(sample.latencies), sample.texts) == (40, 40, 80)
