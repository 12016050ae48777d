"""Tests of a service's life: loading, self-test, ready, draining, and a failing engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from models.bundle.tokenizer import Tokens
from serving.api.routing.request_body import BytesInFlight
from serving.app import create_app
from serving.errors import Overloaded, Unhealthy
from serving.inference.embeddings import EmbedOptions
from serving.inference.engine import Embedded, Engine, EngineOptions
from serving.inference.fake_engine import FakeEngine
from serving.service import Service
from tests.conftest import PATIENCE
from tests.serving.engines import Gate, model

MakeService = Callable[..., Service]
Run = Callable[[Service, Callable[[], Coroutine[Any, Any, None]]], None]
WORK = [
    ("POST", "/embed", {"inputs": "a"}),
    ("POST", "/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ("POST", "/v1/embeddings", {"input": "a"}),
    ("PUT", "/corpora/c", {}),
    ("GET", "/corpora", None),
    ("POST", "/corpora/c/documents", {"documents": [{"text": "a"}]}),
    ("POST", "/corpora/c/search", {"query": "a"}),
]


def test_while_loading_it_lives_but_does_no_work(make_service: MakeService) -> None:
    may_load = threading.Event()

    def load(options: EngineOptions) -> Engine:
        assert may_load.wait(PATIENCE)
        return FakeEngine()

    with TestClient(create_app(make_service(model(load)))) as client:
        assert client.get("/livez").status_code == 200
        assert client.get("/v1/models").status_code == client.get("/info").status_code == 200
        for path in ("/health", "/healthz", "/readyz", "/ping"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["error_type"]) == (503, "Unhealthy")
            assert answer.headers["retry-after"]
        for method, path, body in WORK:
            answer = client.request(method, path, json=body)
            assert answer.status_code == 503, path
            assert answer.headers["retry-after"]
            assert "loading" in answer.text
        may_load.set()


def test_a_tampered_engine_is_never_ready(make_service: MakeService, run: Run) -> None:
    class Tampered(FakeEngine):
        def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
            vectors, norms = super().embed(batch)
            vectors[:, 0] += 0.1
            return Embedded(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), norms)

    service = make_service(model(lambda _: Tampered()))

    async def work() -> None:
        await service.loaded.wait()
        assert service.health.state == "failed"
        assert "'Hashing is not understanding.'" in service.health.reason
        assert "0.99" in service.health.reason
        with pytest.raises(Unhealthy, match="failed"):
            await service.embed(["a"], EmbedOptions())

    run(service, work)


@pytest.mark.parametrize(("failure", "says"), [("raise", "out of memory"), ("nan", "not finite")])
def test_an_engine_failure_reaches_its_batch_only(
    make_service: MakeService, failure: str, says: str, wait_until_ready: Callable[[TestClient], None]
) -> None:
    engine = Gate(failure)
    engine.open.set()
    with TestClient(create_app(make_service(model(lambda _: engine)))) as client:
        wait_until_ready(client)
        answer = client.post("/embed", json={"inputs": "poison"})
        assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
        assert says in answer.json()["error"]
        assert client.post("/embed", json={"inputs": "fine"}).status_code == 200
        client.put("/corpora/c")
        assert client.post("/corpora/c/documents", json={"documents": [{"text": "poison"}]}).status_code == 424
        assert client.get("/corpora/c").json()["documents"] == 0


@pytest.mark.slow
def test_a_thousand_singles_at_once(make_service: MakeService, run: Run) -> None:
    service = make_service()
    texts = [f"text {i} " + "word " * (i % 40) for i in range(1000)]

    async def work() -> None:
        await service.loaded.wait()
        answers = await asyncio.gather(*(service.embed([text], EmbedOptions()) for text in texts))
        engine = FakeEngine()
        expected = engine.embed(engine.tokenize(texts, "right")).vectors
        assert np.allclose(np.concatenate([answer.vectors for answer in answers]), expected, atol=1e-6)

    run(service, work)


def test_beyond_the_queue_requests_are_refused_whole(make_service: MakeService, run: Run) -> None:
    engine = Gate()
    engine.open.set()
    limits = {"max_queued_tokens": 300, "max_request_tokens": 300}
    service = make_service(model(lambda _: engine), **limits)

    async def work() -> None:
        await service.loaded.wait()
        engine.open.clear()
        engine.embedded.clear()
        calls = [asyncio.create_task(service.embed(["a b c"] * 20, EmbedOptions())) for _ in range(5)]
        await asyncio.sleep(0.2)
        engine.open.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, Overloaded)]
        assert len(refused) == 2
        assert all(one.retry_after for one in refused)
        assert sum(engine.embedded) == 60

    run(service, work)


def test_drain_finishes_what_was_admitted_and_refuses_the_rest(make_service: MakeService, run: Run) -> None:
    engine = Gate()
    engine.open.set()
    service = make_service(model(lambda _: engine))

    async def work() -> None:
        await service.loaded.wait()
        engine.open.clear()
        admitted = asyncio.create_task(service.embed(["a", "b"], EmbedOptions()))
        await asyncio.sleep(0.05)
        draining = asyncio.create_task(service.drain())
        await asyncio.sleep(0)
        with pytest.raises(Unhealthy, match="draining"):
            await service.embed(["c"], EmbedOptions())
        assert not draining.done()
        engine.open.set()
        assert await draining
        assert (await admitted).vectors.shape == (2, 64)

    run(service, work)


def test_callers_who_come_while_it_drains_do_not_stop_it(make_service: MakeService, run: Run) -> None:
    service = make_service()

    async def coming() -> None:
        async with service.receiving():
            await asyncio.Event().wait()

    async def stop_and_hear_of_more() -> None:
        for _ in range(5):
            callers.append(asyncio.create_task(coming()))
            await asyncio.sleep(0)

    async def check() -> None:
        callers.append(asyncio.create_task(coming()))
        await asyncio.sleep(0)
        service.jobs.stop = stop_and_hear_of_more  # type: ignore[method-assign]
        assert await service.drain()
        for heard in await asyncio.gather(*callers, return_exceptions=True):
            assert isinstance(heard, Unhealthy)

    callers: list[asyncio.Task[None]] = []
    run(service, check)


def test_drain_ends_within_its_bound(make_service: MakeService, run: Run) -> None:
    engine = Gate()
    engine.open.set()
    service = make_service(model(lambda _: engine), drain_seconds=0.1)

    async def work() -> None:
        await service.loaded.wait()
        engine.open.clear()
        admitted = asyncio.create_task(service.embed(["a"], EmbedOptions()))
        await asyncio.sleep(0.05)
        assert not await service.drain()
        engine.open.set()
        await admitted

    run(service, work)


def test_without_requests_a_drain_is_in_time_even_if_it_has_no_time(make_service: MakeService, run: Run) -> None:
    service = make_service(drain_seconds=0)

    async def work() -> None:
        assert await service.drain()

    run(service, work)


def test_a_caller_who_left_is_not_embedded(make_service: MakeService, run: Run) -> None:
    engine = Gate()
    engine.open.set()
    service = make_service(model(lambda _: engine))

    async def work() -> None:
        await service.loaded.wait()
        engine.open.clear()
        engine.embedded.clear()
        first = asyncio.create_task(service.embed(["first"], EmbedOptions()))
        await asyncio.sleep(0.05)
        leave = asyncio.Event()
        left = asyncio.create_task(_post_and_leave(service, leave))
        async with asyncio.timeout(PATIENCE):
            while service.encoders.default.ready_embedder.batcher.queued_texts != 50:
                await asyncio.sleep(0.001)
        leave.set()
        await left
        engine.open.set()
        await first
        await service.drain()
        assert engine.embedded == [1]

    run(service, work)


async def _post_and_leave(service: Service, leave: asyncio.Event) -> None:
    """Send a request by ASGI, and close its connection when `leave` is set."""
    body = b'{"inputs": [' + b", ".join([b'"a text"'] * 50) + b"]}"
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        assert message.get("status") in (499, None)

    headers = [(b"content-type", b"application/json")]
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/embed",
        "raw_path": b"/embed",
        "query_string": b"",
    }
    scope |= {"headers": headers, "state": {"service": service, "bytes_in_flight": BytesInFlight(1_000_000)}}
    await create_app(service)(scope, receive, send)
