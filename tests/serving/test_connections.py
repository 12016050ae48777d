"""Tests of slow clients: heads and connections have timeouts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from types import SimpleNamespace

import pytest

from serving.commands.server import HEAD_BYTES, Connection, Server
from tests.conftest import PATIENCE
from tests.serving.sockets import CHUNKED, GET, Connect, OnSockets, answer, post, trickle


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "later"])
def test_a_head_that_trickles_is_cut(on_sockets: OnSockets, before: bytes) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        if before:
            writer.write(before)
            assert (await answer(reader))[0] == 200
        writer.write(b"GET /livez HTTP/1.1\r\nx: ")
        async with trickle(writer, b"y"):
            status, headers, body = await answer(reader)
            assert (status, headers["connection"]) == (408, "close")
            assert headers["x-request-id"]
            assert json.loads(body) == {
                "error": "the head of the request did not arrive within 0.2 s",
                "error_type": "Validation",
            }
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""

    on_sockets(work)


def test_what_is_not_http_is_told_in_json(on_sockets: OnSockets) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(b"hello there\r\n\r\n")
        status, headers, body = await answer(reader)
        assert (status, json.loads(body)["error_type"]) == (400, "Validation")
        assert headers["x-request-id"] and await reader.read() == b""
        writer.close()

    on_sockets(work)


def test_a_connection_that_says_nothing_is_closed(on_sockets: OnSockets) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        assert await reader.read() == b""
        writer.close()
        while server.server_state.connections:
            await asyncio.sleep(0.005)

    on_sockets(work)


def test_a_head_without_end_is_cut(on_sockets: OnSockets) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(b"GET /livez HTTP/1.1\r\nx: " + b"y" * HEAD_BYTES)
        assert (await answer(reader))[0] == 431
        writer.close()

    on_sockets(work)


def test_a_whole_head_that_is_too_large_is_refused_in_whatever_pieces_it_comes(on_sockets: OnSockets) -> None:
    head = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n" + b"x: " + b"y" * HEAD_BYTES + b"\r\n\r\n"

    async def work(server: Server, connect: Connect) -> None:
        for piece in (1000, len(head)):
            reader, writer = await connect()
            for start in range(0, len(head), piece):
                writer.write(head[start : start + piece])
                await writer.drain()
                await asyncio.sleep(0)
            assert (await answer(reader))[0] == 431
            writer.close()

    on_sockets(work)


def test_trailers_are_read_past_and_have_a_bound(on_sockets: OnSockets) -> None:
    """Read trailers, which nobody uses and which are limited because they would otherwise fill the memory."""
    body = b'e\r\n{"inputs":"a"}\r\n0\r\n'

    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        for _ in range(2):
            writer.write(CHUNKED + body + b"x-request-id: trailer\r\nx: y\r\n\r\n")
            status, headers, _ = await answer(reader)
            assert status == 200 and headers["x-request-id"] != "trailer"
        writer.write(CHUNKED + body)
        async with trickle(writer, b"x: " + b"y" * 1000 + b"\r\n", 0.0):
            assert (await answer(reader))[0] == 431
        while server.server_state.connections:
            await asyncio.sleep(0.005)

    on_sockets(work)


def test_an_empty_line_between_requests_does_not_keep_the_connection(on_sockets: OnSockets) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(GET)
        assert (await answer(reader))[0] == 200
        writer.write(b"\r\n")
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""
        writer.close()

    on_sockets(work)


def test_requests_share_a_connection(on_sockets: OnSockets) -> None:
    """Reuse a connection after a pause longer than the timeout of a head, and before the previous answer."""

    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        for pause in (0, 0, 0.4):
            await asyncio.sleep(pause)
            writer.write(GET)
            status, headers, _ = await answer(reader)
            assert (status, headers.get("connection")) == (200, None)
        writer.write(GET + post(15) + b'{"inputs": "a"}' + GET)
        assert [(await answer(reader))[0] for _ in range(3)] == [200, 200, 200]
        assert len(server.server_state.connections) == 1
        writer.write(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert (await answer(reader))[0] == 200
        assert await reader.read() == b""
        writer.close()

    on_sockets(work)


H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 100, 10_000], ids=["byte by byte", "in pieces", "at once"])
def test_a_wish_for_another_protocol_changes_nothing(on_sockets: OnSockets, size: int) -> None:
    """Ignore an upgrade, which Java's client always requests. Its body must never be parsed as a request."""
    body = json.dumps({"inputs": ["a text"]}).encode()
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    smuggled = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    sent = [
        (post(len(body))[:-2] + H2C + b"\r\n" + body, 200),
        (CHUNKED[:-2] + H2C + b"\r\n" + chunked, 200),
        (post(len(smuggled))[:-2] + H2C + b"\r\n" + smuggled, 400),
        (GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 200),
        (post(len(body)) + body, 200),
        (GET[:-2] + b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n\r\n", 200),
    ]

    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        for request, expected in sent:
            for at in range(0, len(request), size):
                writer.write(request[at : at + size])
                await writer.drain()
                await asyncio.sleep(0)
            assert (await answer(reader))[0] == expected
        assert await reader.read() == b"", "one answer each, and closed as the last one asked"
        writer.close()

    on_sockets(work)


@pytest.mark.parametrize("target", [b"a:443", b"/embed"])
def test_it_is_no_proxy(on_sockets: OnSockets, target: bytes) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(b"CONNECT %s HTTP/1.1\r\nhost: localhost\r\n\r\n" % target)
        assert (await answer(reader))[0] == 400
        assert await reader.read() == b""
        writer.close()

    on_sockets(work)


MANY = 200 * b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"
"""Requests whose answers exceed the system's socket buffers."""


@pytest.mark.slow
def test_answers_that_nobody_reads_end_the_connection(on_sockets: OnSockets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.commands.server.UNREAD_SECONDS", 0.2)

    async def work(server: Server, connect: Connect) -> None:
        _, writer = await connect()
        writer.write(MANY)
        await asyncio.sleep(0.1)
        assert server.server_state.connections
        while server.server_state.connections:
            await asyncio.sleep(0.005)
        writer.close()

    on_sockets(work)


@pytest.mark.parametrize("written", ["while it is read", "before"])
def test_answers_that_are_read_slowly_are_read_to_their_end(written: str) -> None:
    """Read answers slowly, checked by the progress since the last check, also after everything is written."""
    left, looks, done = 1_000_000, [], []
    connection = Connection.__new__(Connection)
    connection._unread = None
    connection.transport = SimpleNamespace(  # type: ignore[assignment]
        get_write_buffer_size=lambda: left,
        is_closing=lambda: False,
        close=lambda: done.append("closed"),
        abort=lambda: done.append(f"aborted, {left} left"),
    )
    connection.loop = SimpleNamespace(call_later=lambda _, look, before: looks.append((look, before)))  # type: ignore[assignment]
    if written == "before":
        connection.timeout_keep_alive_handler()
    else:
        connection._watch()
    for left in (940_000, 880_000, 820_001):
        look, before = looks.pop()
        look(before)
        assert bool(looks) is (left != 820_001)
    assert done == ["closed"] * (written == "before") + ["aborted, 820001 left"]
