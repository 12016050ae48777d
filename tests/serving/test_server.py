"""Tests of the socket: options of connections, and clients that leave or wait in the middle of a request."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Literal
from unittest.mock import AsyncMock, Mock

import pytest
from starlette.types import Message, Receive, Scope, Send

from serving.api.middleware.edge import Edge
from serving.commands.server import Server
from serving.service import Health, Service
from tests.serving.engines import Gate, model
from tests.serving.sockets import answer, listening, post

HALF = (
    b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b'content-length: 100\r\n\r\n{"inputs": '
)
BODIES = {
    "/embed": b'{"inputs": "a"}',
    "/v1/embeddings": b'{"input": "a", "model": "fake"}',
    "/v2/embed": b'{"texts": ["a"], "model": "fake", "input_type": "search_query"}',
    "/api/embed": b'{"input": "a", "model": "fake"}',
}


async def status(reader: asyncio.StreamReader) -> bytes:
    return (await reader.readline()).split()[1]


@pytest.mark.slow
def test_answers_are_sent_at_once(make_service: Callable[..., Service]) -> None:
    async def main() -> None:
        async with listening(make_service(port=0)) as (server, connect):
            reader, writer = await connect()
            writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert await status(reader) == b"200"
            (connection,) = server.server_state.connections
            accepted = connection.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()

    asyncio.run(main())


@pytest.mark.slow
def test_half_a_body_neither_holds_the_drain_nor_makes_a_traceback(
    make_service: Callable[..., Service], caplog: pytest.LogCaptureFixture
) -> None:
    """Stop the server while one client leaves in the middle of a body, and another still sends."""

    async def main() -> None:
        async with listening(make_service(port=0)) as (server, connect):
            reader, writer = await connect()
            writer.write(HALF)
            await arrived(server, 1)
            writer.close()
            await writer.wait_closed()
            await arrived(server, 0)
            reader, writer = await connect()
            writer.write(HALF)
            await arrived(server, 1)
            server.handle_exit(signal.SIGTERM, None)
            assert await status(reader) == b"503"
            writer.close()

    asyncio.run(main())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_drain_that_fails_ends_the_process_all_the_same(
    make_service: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        service = make_service(port=0)
        monkeypatch.setattr(service, "drain", AsyncMock(side_effect=RuntimeError("a bug")))
        server = Server(service)
        server.handle_exit(signal.SIGTERM, None)
        assert server._draining
        with pytest.raises(RuntimeError, match="a bug"):
            await server._draining
        assert server.should_exit

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings", "/v2/embed", "/api/embed"])
def test_a_request_that_outlasts_the_drain_gets_a_503_in_its_family(
    make_service: Callable[..., Service],
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("serving.commands.server.SECONDS_TO_ASK", 0.0)
    monkeypatch.setattr("serving.commands.server.SECONDS_TO_SEND", 0.0)
    engine = Gate()
    engine.open.set()
    body = BODIES[path]
    caplog.set_level(logging.INFO, "serving.access")

    async def main() -> None:
        async with listening(make_service(model(lambda _: engine), port=0, drain_seconds=0.05)) as (server, connect):
            engine.open.clear()
            reader, writer = await connect()
            writer.write(post(len(body), path) + body)
            await arrived(server, 1)
            server.handle_exit(signal.SIGTERM, None)
            status, headers, content = await answer(reader)
            engine.open.set()
            said = json.loads(content)
            assert (status, headers["retry-after"]) == (503, "1")
            message = said["message"] if path == "/v2/embed" else said["error"]
            assert "the server is shutting down" in str(message)
            writer.close()

    asyncio.run(main())
    assert [record for record in caplog.records if record.exc_info] == []
    assert [vars(record)["fields"]["status"] for record in caplog.records if record.name == "serving.access"] == [503]


@pytest.mark.parametrize(("state", "cut"), [("draining", False), ("ready", True)])
def test_only_the_end_of_the_server_takes_a_cancellation_from_an_answer_that_was_begun(
    state: Literal["draining", "ready"], *, cut: bool
) -> None:
    """Check the log: uvicorn reports an incomplete answer in one line, but an exception with a traceback."""
    sent: list[Message] = []

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        await asyncio.Event().wait()

    async def send(message: Message) -> None:
        sent.append(message)

    async def main() -> None:
        service = SimpleNamespace(health=Health(state, ""))
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "state": {"service": service}}
        request = asyncio.create_task(Edge(answering)(scope, Mock(), send))
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait([request])
        assert request.cancelled() == cut

    asyncio.run(main())
    assert [message["type"] for message in sent] == ["http.response.start"]


async def arrived(server: Server, requests: int) -> None:
    while len(server.server_state.tasks) != requests:
        await asyncio.sleep(0.005)
