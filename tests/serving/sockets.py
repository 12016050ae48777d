"""A server on a socket of this process, and clients that write bytes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from serving.commands.server import Server, bind
from serving.service import Service
from tests.conftest import PATIENCE

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]
Work = Callable[[Server, Connect], Awaitable[None]]
OnSockets = Callable[..., None]
GET = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNKED = (
    b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
)


@asynccontextmanager
async def listening(service: Service) -> AsyncIterator[tuple[Server, Callable[[], asyncio.Future[Streams]]]]:
    """Yield the server and a function that connects to it. The server is drained at the end."""
    bound = bind(service.settings)
    server = Server(service)
    async with asyncio.timeout(PATIENCE):
        serving = asyncio.create_task(server.serve(sockets=bound))
        await service.loaded.wait()
        yield server, lambda: asyncio.ensure_future(asyncio.open_connection(*bound[0].getsockname()[:2]))
        if service.health.state != "draining":  # A second signal would end this process.
            server.handle_exit(signal.SIGTERM, None)
        await serving


def post(length: int, path: str = "/embed") -> bytes:
    headers = f"host: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}"
    return f"POST {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


@contextlib.asynccontextmanager
async def trickle(writer: asyncio.StreamWriter, byte: bytes, pause: float = 0.05) -> AsyncIterator[None]:
    """Send a byte from time to time, until the other side stops reading."""

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(byte)
                await writer.drain()
                await asyncio.sleep(pause)

    sending = asyncio.create_task(send())
    try:
        yield
    finally:
        sending.cancel()
        writer.close()
