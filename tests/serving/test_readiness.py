"""Tests of readiness: a server whose engine fails repeatedly is not ready until the engine works again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from models.bundle.tokenizer import Tokens
from serving.app import create_app
from serving.corpora.corpora import Corpora
from serving.corpora.ports import StoreError
from serving.errors import Backend
from serving.inference.embeddings import EmbedOptions
from serving.inference.engine import Embedded
from serving.inference.fake_engine import FakeEngine
from serving.service import Service
from tests.serving.engines import Gate, model

MakeService = Callable[..., Service]
Run = Callable[[Service, Callable[[], Coroutine[Any, Any, None]]], None]


def test_an_engine_that_fails_again_and_again_is_not_ready_until_it_works(
    make_service: MakeService, wait_until_ready: Callable[[TestClient], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "serving.inference.batcher")
    broken = threading.Event()

    class Breaking(FakeEngine):
        def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
            if broken.is_set():
                raise RuntimeError("device lost")
            return super().embed(batch)

    with TestClient(create_app(make_service(model(lambda _: Breaking())))) as client:
        wait_until_ready(client)

        def embed() -> int:
            return client.post("/embed", json={"inputs": "a"}).status_code

        for _ in range(2):  # A batch that succeeds resets the count.
            broken.set()
            assert [embed() for _ in range(2)] == [424, 424]
            assert client.get("/readyz").status_code == 200
            broken.clear()
            assert embed() == 200
        broken.set()
        assert [embed() for _ in range(3)] == [424] * 3
        for path in ("/health", "/readyz", "/ping"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["state"]) == (503, "failing"), path
            assert "the last 3 batches of fake failed: the engine failed: device lost" in answer.json()["error"]
        assert client.get("/livez").status_code == 200
        assert "isosphere_ready 0.0" in client.get("/metrics").text
        assert embed() == 424  # The engine is still tried, so that it may recover.
        broken.clear()
        # A request of /readyz tries it, although no other request comes.
        assert client.get("/readyz").status_code == 200
        assert "isosphere_ready 1.0" in client.get("/metrics").text
    said = [record.message for record in caplog.records if record.name == "serving.inference.batcher"]
    assert said == [
        "3 batches in a row failed, so the server is not ready: the engine failed: device lost",
        "the engine works again",
    ], "once each, however many fail"


def test_why_loading_failed_is_for_the_log_alone(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Hide the reason, because paths and names of corpora are only for the server's owner."""
    reason = "/srv/isosphere/corpora/tenant-a.sqlite: not a corpus of this server"

    def warm(corpora: Corpora) -> None:
        raise StoreError(reason)

    monkeypatch.setattr(Corpora, "warm", warm)
    service = make_service()
    with TestClient(create_app(service)) as client:
        while service.health.state == "loading":
            client.get("/livez")
        for answer in (client.get("/readyz"), client.get("/health"), client.post("/embed", json={"inputs": "a"})):
            assert answer.status_code == 503 and "failed: loading failed" in answer.json()["error"]
            assert "tenant-a" not in answer.text and "/srv" not in answer.text
    assert reason in caplog.text


def test_those_who_ask_at_once_share_a_probe_that_is_no_request_and_wait_for_it_shortly(
    make_service: MakeService, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Gate("raise")
    engine.open.set()
    service = make_service(model(lambda _: engine))
    monkeypatch.setattr("serving.service.PROBE_SECONDS", 0.05)

    async def work() -> None:
        await service.loaded.wait()
        for _ in range(3):
            with pytest.raises(Backend):
                await service.embed(["poison"], EmbedOptions())
        engine.embedded.clear()
        engine.open.clear()
        requests = _requests(service)
        for _ in range(2):  # The second request comes while the first one's probe still runs.
            states = {health.state for health in await asyncio.gather(*(service.probed() for _ in range(5)))}
            assert states == {"failing"}
        engine.open.set()
        await asyncio.wait(service.encoders.default.ready_embedder.batcher._live)
        assert engine.embedded == [1] and service.readiness.state == "ready"
        assert _requests(service) == requests

    run(service, work)


def _requests(service: Service) -> list[str]:
    return [line for line in service.metrics.text().decode().splitlines() if line.startswith("te_request_")]


def test_a_caller_of_a_failing_engine_brings_it_back(make_service: MakeService, run: Run) -> None:
    engine = Gate("raise")
    engine.open.set()
    service = make_service(model(lambda _: engine))

    async def work() -> None:
        await service.loaded.wait()
        for _ in range(3):
            with pytest.raises(Backend):
                await service.embed(["poison"], EmbedOptions())
        assert (await service.probed()).state == "ready"  # The probe does not fail by itself.
        for _ in range(3):
            with pytest.raises(Backend):
                await service.embed(["poison"], EmbedOptions())
        states = [service.readiness.state]
        await service.embed(["fine"], EmbedOptions())
        states.append(service.readiness.state)
        assert states == ["failing", "ready"]

    run(service, work)
