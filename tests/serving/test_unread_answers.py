"""Tests of answers that clients do not read: the bytes that a server keeps are limited."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from serving.api import search
from serving.api.middleware.unread_answers import PIECE, UNCOUNTED, UnreadLimit
from serving.api.routing import answers
from serving.app import create_app
from serving.operations.keys import Key
from serving.operations.limits import Caller, Limits, charged_to
from serving.service import Service
from tests.conftest import PATIENCE

LIMIT, OWN = 1_000_000, 600_000


class Body(bytearray):
    """Body that a weak reference can follow."""


class Reader:
    """Client that requests answers of a number of bytes, and reads them only on demand."""

    def __init__(self, app: UnreadLimit, key: str | None = None, own: int | None = OWN) -> None:
        self._app = app
        limits = Limits(unread_bytes=own)
        self._caller = Caller(Key(name=key, sha256="0" * 64, scopes=("read",)), limits) if key else None
        self.reads = asyncio.Event()
        self.sent: list[Message] = []

    async def ask(self, size: int, path: str = "/embed", method: str = "POST") -> int:
        """Return the status. The rest of the answer waits for the reader."""
        sent: list[Message] = []
        begun = asyncio.Event()

        async def send(message: Message) -> None:
            sent.append(message)
            begun.set()
            if message["type"] == "http.response.body" and sent[0]["status"] == 200:
                await self.reads.wait()

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": method, "path": path, "headers": [], "size": size, "query_string": b""}
        with charged_to(self._caller):
            self.asking = asyncio.create_task(self._app(scope, receive, send))
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
        self.sent = sent
        return int(sent[0]["status"])

    def body(self) -> Any:
        return json.loads(b"".join(message.get("body", b"") for message in self.sent))


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(b"x" * scope["size"])(scope, receive, send)


def test_answers_that_nobody_reads_have_a_bound_for_each_key_and_for_all() -> None:
    async def main() -> None:
        app = UnreadLimit(answering, LIMIT)
        first, again, second = Reader(app, "one"), Reader(app, "two"), Reader(app, "two")
        again._caller = first._caller
        assert await first.ask(500_000) == 200
        assert await again.ask(200_000) == 429, "of this key"
        assert dict(again.sent[0]["headers"])[b"retry-after"] == b"1"
        assert again.body()["error_type"] == "Overloaded" and "answers to the key 'one'" in again.body()["error"]
        assert await second.ask(400_000) == 200, "another key has a bound of its own"
        third = Reader(app, "three")
        assert await third.ask(200_000) == 429
        assert "unread answers of this server have 900000 bytes" in third.body()["error"]
        assert await third.ask(UNCOUNTED) == 200, "who asks little is always answered"
        first.reads.set()
        await first.asking
        assert await again.ask(200_000) == 200, "there is room again"

    asyncio.run(main())


def test_a_stream_that_has_begun_goes_on() -> None:
    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for size in (1, 2 * UNCOUNTED, 1):
            await send({"type": "http.response.body", "body": b"x" * size, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def main() -> None:
        app = UnreadLimit(streaming, UNCOUNTED)
        reader = Reader(app)
        reader.reads.set()
        assert await reader.ask(0) == 200
        await reader.asking
        assert sum(len(message.get("body", b"")) for message in reader.sent) == 2 * UNCOUNTED + 2
        assert [message["type"] for message in reader.sent].count("http.response.start") == 1

    asyncio.run(main())


def test_an_answer_that_never_fits_says_so() -> None:
    async def main() -> None:
        app = UnreadLimit(answering, LIMIT)
        for reader, most in ((Reader(app, "one"), OWN), (Reader(app), LIMIT)):
            assert await reader.ask(most + 1, "/v1/embeddings") == 413
            assert f"only {most} may be sent" in reader.body()["error"]["message"]
            assert await reader.ask(most) == 200
            reader.reads.set()
            await reader.asking

    asyncio.run(main())


def test_what_was_done_and_what_watches_the_server_is_always_told() -> None:
    async def main() -> None:
        app = UnreadLimit(answering, LIMIT)
        asked = [("POST", "/a"), ("POST", "/corpora/a/documents"), ("DELETE", "/jobs/a"), ("GET", "/metrics")]
        # Without this reference, the reader would be deleted.
        waiting = [(Reader(app), method, path) for method, path in asked]
        for reader, method, path in waiting:
            assert await reader.ask(LIMIT, path, method) == 200
        assert await Reader(app).ask(LIMIT, "/corpora/a/documents", "GET") == 429

    asyncio.run(main())


def test_a_large_answer_is_handed_on_as_it_is_read() -> None:
    async def main() -> None:
        reader = Reader(UnreadLimit(answering, 10 * PIECE), "one", None)
        assert await reader.ask(3 * PIECE + 1) == 200
        for _ in range(5):
            await asyncio.sleep(0)
        assert [len(one.get("body", b"")) for one in reader.sent] == [0, PIECE], "the rest waits for the reader"
        reader.reads.set()
        await reader.asking
        assert [len(one.get("body", b"")) for one in reader.sent] == [0, PIECE, PIECE, PIECE, 1]
        assert [one.get("more_body", False) for one in reader.sent] == [False, True, True, True, False]

    asyncio.run(main())


def test_nothing_is_left_of_an_answer_that_was_refused() -> None:
    """Check the memory at once, because many refused answers could exist before the garbage collector runs."""
    kept: list[weakref.ref[Body]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(b"x" * scope["size"])
        kept.append(weakref.ref(body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def main() -> None:
        reader = Reader(UnreadLimit(app, LIMIT))
        assert await reader.ask(LIMIT + 1) == 413
        await reader.asking

    gc.disable()
    try:
        asyncio.run(main())
        assert [one() for one in kept] == [None]
    finally:
        gc.enable()


def test_hits_beyond_one_answer_are_refused_before_they_are_all_built(
    make_service: Callable[..., Service],
    wait_until_ready: Callable[[TestClient], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Use control characters, each of which takes six bytes in JSON."""
    built: list[int] = []

    def written(content: object) -> bytes:
        made = real(content)
        built.append(len(made))
        return made

    real = answers.written
    monkeypatch.setattr(search, "written", written)
    with TestClient(create_app(make_service(max_unread_bytes=100_000))) as client:
        wait_until_ready(client)
        client.put("/corpora/c")
        documents = [{"id": str(i), "text": f"{i} whale" + "\x01" * 5000} for i in range(20)]
        assert client.post("/corpora/c/documents", json={"documents": documents}).status_code == 200
        answer = client.post("/corpora/c/search", json={"query": "whale", "k": 20})
        assert (answer.status_code, answer.json()["error_type"]) == (413, "Validation")
        assert "k: the hits have more than the 100000 bytes that an answer may have" in answer.json()["error"]
        assert len(built) == 4 and sum(built[:3]) <= 100_000
        assert client.post("/corpora/c/search", json={"query": "whale", "k": 3}).status_code == 200
        without = client.post("/corpora/c/search", json={"query": "whale", "k": 20, "with_text": False})
        assert len(without.json()["hits"]) == 20
        vectors = client.post("/embed", json={"inputs": ["a"] * 1000})
        assert vectors.status_code == 413 and "only 100000 may be sent" in vectors.json()["error"]
