"""The socket: what connections are set to, and callers who leave or linger in the middle of a request."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable

import pytest

from serving.server import Server
from serving.service import Service
from tests.serving.sockets import listening

HALF = (
    b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b'content-length: 100\r\n\r\n{"inputs": '
)


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
    """One caller leaves in the middle of a body, another still sends when the server is told to go."""

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


async def arrived(server: Server, requests: int) -> None:
    while len(server.server_state.tasks) != requests:
        await asyncio.sleep(0.005)
