"""Tests of bodies on a socket: slow, large, refused and interrupted ones all come to an end."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.commands.server import HEAD_BYTES, Server
from serving.service import Service
from tests.conftest import soon
from tests.serving.engines import Gate, model
from tests.serving.sockets import CHUNKED, GET, Connect, OnSockets, answer, listening, post, trickle


def test_a_chunked_body_larger_than_a_head_may_be_is_whole(on_sockets: OnSockets) -> None:
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


@pytest.mark.parametrize("pause", [10.0, 0.05], ids=["stalls", "trickles"])
@pytest.mark.parametrize("path", soon(["/embed", "/v1/embeddings"], "/v1/embeddings"))
def test_a_slow_body_is_a_408_and_the_end(on_sockets: OnSockets, path: str, pause: float) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(post(1000, path) + b'{"in')
        async with trickle(writer, b" ", pause):
            status, headers, body = await answer(reader)
            assert (status, headers["connection"]) == (408, "close")
            assert headers["x-request-id"]
            error = json.loads(body)["error"]
            assert "no part of the body arrived for 0.2 s" in (error["message"] if path.startswith("/v1") else error)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""

    on_sockets(work)


@pytest.mark.parametrize(("status", "length", "keys"), [(401, 100, True), (413, 33_000_000, False), (408, 100, False)])
def test_who_asks_before_sending_is_refused_before_sending(
    on_sockets: OnSockets, tmp_path: Path, status: int, length: int, keys: bool
) -> None:
    """Send `Expect: 100-continue`. Only an accepted request gets `100 Continue`."""
    (tmp_path / "keys.json").write_text('{"format": 1, "keys": []}')

    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(post(length).replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n"))
        if status == 408:
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await answer(reader))[0] == status
        writer.close()

    on_sockets(work, api_keys_file=tmp_path / "keys.json" if keys else None)


@pytest.mark.slow
def test_a_large_body_may_take_its_time(on_sockets: OnSockets) -> None:
    """Send a body for longer than the timeout, without long pauses and faster than the minimum rate."""

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


def test_the_rest_of_a_refused_body_has_an_end_too(on_sockets: OnSockets) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(post(33_000_000) + b"{")
        async with trickle(writer, b" "):
            status, headers, _ = await answer(reader)
            assert (status, headers.get("connection")) == (413, None)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""

    on_sockets(work)


def test_a_refused_body_that_ends_soon_keeps_the_connection(on_sockets: OnSockets) -> None:
    async def work(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(post(100, "/nowhere"))
        assert (await answer(reader))[0] == 404
        writer.write(b"x" * 100 + GET)
        assert (await answer(reader))[0] == 200
        writer.close()

    on_sockets(work)


@pytest.mark.slow
def test_bodies_on_their_way_have_a_bound_together(make_service: Callable[..., Service]) -> None:
    """Limit the total size of arriving bodies. One body may exceed it, and large others are then refused."""
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
                await asyncio.sleep(0.1)  # The body has been read.
                other[1].write(post(len(body)) + body)
                status, headers, told = await answer(other[0])
                assert (status, headers["retry-after"]) == (429, "1")
                assert f"the limit is {len(body) // 2}" in json.loads(told)["error"]
                third[1].write(post(len(small)) + small)
                assert (await answer(third[0]))[0] == 200
                writer.write(body[-1:])
                assert (await answer(reader))[0] == 200
                other[1].write(post(len(body)) + body)
                assert (await answer(other[0]))[0] == 200
            for one in (writer, other[1], third[1]):
                one.close()

    asyncio.run(main())


@pytest.mark.slow
def test_who_hangs_up_is_not_embedded(make_service: Callable[..., Service]) -> None:
    """Close the connection while the request is in the queue. Its texts leave the queue."""
    engine = Gate()
    engine.open.set()

    async def main() -> None:
        service = make_service(model(lambda _: engine), port=0)
        async with listening(service) as (_, connect):
            engine.open.clear()
            engine.embedded.clear()
            first, gone = await connect(), await connect()
            batcher = service.encoders.default.ready_embedder.batcher
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


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_a_body_counts_until_its_request_is_answered(make_service: Callable[..., Service], packed: bool) -> None:
    """Count a body until its request is answered, at its unpacked size, because it is in memory while it waits."""
    engine = Gate()
    plain = json.dumps({"inputs": ["word " * 100] * 400}).encode()
    body = gzip.compress(plain) if packed else plain
    head = post(len(body))
    sent = (head.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") if packed else head) + body

    async def main() -> None:
        engine.open.set()
        service = make_service(model(lambda _: engine), port=0, max_received_bytes=len(plain))
        async with listening(service) as (_, connect):
            engine.open.clear()
            first, second = await connect(), await connect()
            first[1].write(sent)
            while not service.encoders.default.ready_embedder.batcher.queued_tokens:
                await asyncio.sleep(0.005)
            second[1].write(sent)
            status, _, told = await answer(second[0])
            assert status == 429 and f"the limit is {len(plain)}" in json.loads(told)["error"]
            engine.open.set()
            assert (await answer(first[0]))[0] == 200
            second[1].write(sent)
            assert (await answer(second[0]))[0] == 200
            for _, writer in (first, second):
                writer.close()

    asyncio.run(main())
