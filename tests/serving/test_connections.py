"""The socket against callers who dawdle: heads, bodies and the rest of a refused one all have an end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from serving.connections import HEAD_BYTES
from serving.server import Server
from serving.service import Service
from tests.serving.engines import Gate, model
from tests.serving.test_server import Streams, listening

Connect = Callable[[], Awaitable[Streams]]
Work = Callable[[Server, Connect], Awaitable[None]]
GET = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n"


def post(length: int, path: str = "/embed") -> bytes:
    headers = f"host: a\r\ncontent-type: application/json\r\ncontent-length: {length}"
    return f"POST {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode()


@pytest.fixture
def on_sockets(make_service: Callable[..., Service], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a coroutine with a server whose patience is a moment's."""
    monkeypatch.setattr("serving.connections.HEAD_SECONDS", 0.2)
    monkeypatch.setattr("serving.server.SECONDS_TO_ASK", 0.0)

    def on_sockets(work: Work, **options: Any) -> None:
        async def main() -> None:
            async with listening(make_service(port=0, body_timeout=0.2, **options)) as (server, connect):
                await work(server, connect)

        asyncio.run(main())

    return on_sockets


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


@contextlib.asynccontextmanager
async def trickle(writer: asyncio.StreamWriter, byte: bytes, pause: float = 0.05) -> AsyncIterator[None]:
    """Sends a byte now and then, for as long as the other side takes it."""

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


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "later"])
def test_a_head_that_trickles_is_cut(on_sockets: Callable[..., None], before: bytes) -> None:
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
                "error": "the head of the request was not there within 0.2 s",
                "error_type": "Validation",
            }
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""

    on_sockets(work)


def test_what_is_not_http_is_told_in_json(on_sockets: Callable[..., None]) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(b"hello there\r\n\r\n")
        status, headers, body = await answer(reader)
        assert (status, json.loads(body)["error_type"]) == (400, "Validation")
        assert headers["x-request-id"] and await reader.read() == b""
        writer.close()

    on_sockets(work)


def test_a_connection_that_says_nothing_is_closed(on_sockets: Callable[..., None]) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        assert await reader.read() == b""
        writer.close()
        while server.server_state.connections:
            await asyncio.sleep(0.005)

    on_sockets(work)


def test_a_head_without_end_is_cut(on_sockets: Callable[..., None]) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(b"GET /livez HTTP/1.1\r\nx: " + b"y" * HEAD_BYTES)
        assert (await answer(reader))[0] == 431
        writer.close()

    on_sockets(work)


def test_a_whole_head_that_is_too_large_is_refused_in_whatever_pieces_it_comes(on_sockets: Callable[..., None]) -> None:
    head = b"GET /livez HTTP/1.1\r\nhost: a\r\n" + b"x: " + b"y" * HEAD_BYTES + b"\r\n\r\n"

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


CHUNKED = b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"


def test_trailers_are_read_past_and_have_a_bound(on_sockets: Callable[..., None]) -> None:
    """They come after the body, where nobody looks for them; without a bound they are all kept."""
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


def test_a_chunked_body_larger_than_a_head_may_be_is_whole(on_sockets: Callable[..., None]) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        body = json.dumps({"inputs": ["word " * 100] * 400}).encode()
        assert len(body) > 2 * HEAD_BYTES
        pieces = [body[start : start + 7] for start in range(0, len(body), 7)]
        writer.write(CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n")
        status, _, vectors = await answer(reader)
        assert (status, len(json.loads(vectors))) == (200, 400)
        writer.close()

    on_sockets(work)


def test_an_empty_line_between_requests_does_not_keep_the_connection(on_sockets: Callable[..., None]) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(GET)
        assert (await answer(reader))[0] == 200
        writer.write(b"\r\n")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()

    on_sockets(work)


@pytest.mark.parametrize("pause", [10.0, 0.05], ids=["stalls", "trickles"])
@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
def test_a_slow_body_is_a_408_and_the_end(on_sockets: Callable[..., None], path: str, pause: float) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(post(1000, path) + b'{"in')
        async with trickle(writer, b" ", pause):
            status, headers, body = await answer(reader)
            assert (status, headers["connection"]) == (408, "close")
            assert headers["x-request-id"]
            error = json.loads(body)["error"]
            assert "the body stopped for 0.2 s" in (error["message"] if path.startswith("/v1") else error)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""

    on_sockets(work)


@pytest.mark.parametrize(("status", "length", "keys"), [(401, 100, True), (413, 33_000_000, False), (408, 100, False)])
def test_who_asks_before_sending_is_refused_before_sending(
    on_sockets: Callable[..., None], tmp_path: Path, status: int, length: int, keys: bool
) -> None:
    """Only the one whose body is wanted hears `100 Continue`."""
    (tmp_path / "keys.json").write_text('{"format": 1, "keys": []}')

    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(post(length).replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n"))
        if status == 408:
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await answer(reader))[0] == status
        writer.close()

    on_sockets(work, api_keys_file=tmp_path / "keys.json" if keys else None)


def test_a_large_body_may_take_its_time(on_sockets: Callable[..., None]) -> None:
    """Longer than the patience in all, never pausing for as long, and faster than a trickle."""

    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        body = json.dumps({"inputs": ["word " * 100] * 20}).encode()
        writer.write(post(len(body)))
        for start in range(0, len(body), 1000):
            writer.write(body[start : start + 1000])
            await asyncio.sleep(0.05)
        assert (await answer(reader))[0] == 200
        writer.close()

    on_sockets(work)


def test_the_rest_of_a_refused_body_has_an_end_too(on_sockets: Callable[..., None]) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(post(33_000_000) + b"{")
        async with trickle(writer, b" "):
            status, headers, _ = await answer(reader)
            assert (status, headers.get("connection")) == (413, None)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""

    on_sockets(work)


def test_a_refused_body_that_ends_soon_keeps_the_connection(on_sockets: Callable[..., None]) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(post(100, "/nowhere"))
        assert (await answer(reader))[0] == 404
        writer.write(b"x" * 100 + GET)
        assert (await answer(reader))[0] == 200
        writer.close()

    on_sockets(work)


def test_requests_share_a_connection(on_sockets: Callable[..., None]) -> None:
    """Also after a pause longer than that for a head, and when they come before the answer."""

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


def test_bodies_on_their_way_have_a_bound_together(make_service: Callable[..., Service]) -> None:
    """One alone may exceed it; while it is there another is refused, but not one of a few texts."""
    body = json.dumps({"inputs": ["word " * 100] * 400}).encode()
    small = b'{"inputs": "a"}'

    async def main() -> None:
        async with listening(make_service(port=0, max_received_bytes=len(body) // 2)) as (server, connect):
            (reader, writer), other, third = await connect(), await connect(), await connect()
            for _ in range(2):
                writer.write(post(len(body)) + body[:-1])
                await writer.drain()
                while not server.server_state.tasks:
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.1)  # it is read
                other[1].write(post(len(body)) + body)
                status, headers, told = await answer(other[0])
                assert (status, headers["retry-after"]) == (429, "1")
                assert f"the most is {len(body) // 2}" in json.loads(told)["error"]
                third[1].write(post(len(small)) + small)
                assert (await answer(third[0]))[0] == 200
                writer.write(body[-1:])
                assert (await answer(reader))[0] == 200
                other[1].write(post(len(body)) + body)
                assert (await answer(other[0]))[0] == 200
            for one in (writer, other[1], third[1]):
                one.close()

    asyncio.run(main())


def test_who_hangs_up_is_not_embedded(make_service: Callable[..., Service]) -> None:
    """A whole request waits behind another when its connection ends: its texts leave the queue."""
    engine = Gate()
    engine.open.set()

    async def main() -> None:
        service = make_service(model(lambda _: engine), port=0)
        async with listening(service) as (_, connect):
            engine.open.clear()
            engine.embedded.clear()
            first, gone = await connect(), await connect()
            batcher = service.embedder.batcher
            for (_, writer), body, waiting in (
                (first, b'{"inputs": ["a", "b", "c"]}', 0),
                (gone, b'{"inputs": ["x", "y", "z"]}', 3),
            ):
                writer.write(post(len(body)) + body)
                while batcher.queued_texts != waiting or not batcher.queued_tokens:
                    await asyncio.sleep(0.005)
            queued = batcher.queued_tokens
            gone[1].close()
            while batcher.queued_tokens == queued:
                await asyncio.sleep(0.005)
            engine.open.set()
            assert (await answer(first[0]))[0] == 200
            first[1].close()
        assert engine.embedded == [3]

    asyncio.run(main())
