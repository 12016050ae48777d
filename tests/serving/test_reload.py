"""Tests of the replacement of the served bundle while requests continue."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from models.bundle.bundle import BundleError
from serving.app import create_app
from serving.commands.server import Server, bind
from serving.corpora.search import SearchOptions
from serving.corpora.values import Corpus, Document
from serving.errors import Conflict, Unhealthy
from serving.inference.embeddings import EmbedOptions
from serving.inference.engine import EngineError, Model
from serving.inference.fake_engine import FakeEngine
from serving.service import Service
from tests.conftest import PATIENCE
from tests.serving.conftest import Bundles, Gate

MakeService = Callable[..., Service]
Run = Callable[[Service, Callable[[], Coroutine[Any, Any, None]]], None]


def embedded(*texts: str) -> Any:
    engine = FakeEngine()
    return engine.embed(engine.tokenize(texts, "right")).vectors


def test_requests_finish_on_the_encoder_they_began_with(make_service: MakeService, run: Run, bundles: Bundles) -> None:
    gate = threading.Event()
    gate.set()
    # The gate takes one of the permits.
    service = make_service(replace(bundles.fake, load=lambda _: Gate(gate)), threads=2)

    async def work() -> None:
        await service.loaded.wait()
        old = service.encoders.default.ready_embedder
        gate.clear()
        # Longer than one call of the tokenizer and one batch, so that it is in all stages when the encoder changes.
        begun = asyncio.create_task(service.embed(["a b c d"] * 500, EmbedOptions()))
        await asyncio.sleep(0.05)
        assert await service.reload() == [("turned", "fake-1", "fake-2")]
        after = await service.embed(["a b c d"], EmbedOptions())
        assert np.allclose(after.vectors, -embedded("a b c d"), atol=1e-6) and after.manifest.name == "turned"
        assert not begun.done()
        gate.set()
        before = await begun
        assert np.allclose(before.vectors, np.repeat(embedded("a b c d"), 500, axis=0), atol=1e-6)
        assert before.manifest.fingerprint == "fake-1"
        async with asyncio.timeout(PATIENCE):
            while service.encoders._retiring:
                await asyncio.sleep(0.01)
        with pytest.raises(Unhealthy):
            await old.batcher.submit([])

    run(service, work)


def test_an_upload_and_a_search_keep_to_one_encoder(make_service: MakeService, run: Run, bundles: Bundles) -> None:
    """Change the encoder between the check of the corpus and the computation of the vectors."""
    gate = threading.Event()
    gate.set()
    # The gate takes one of the permits.
    service = make_service(replace(bundles.fake, load=lambda _: Gate(gate)), threads=2)

    async def work() -> None:
        await service.loaded.wait()
        await service.library.run(lambda corpora: corpora.create(Corpus("filled")))
        await service.library.run(lambda corpora: corpora.create(Corpus("empty")))
        await service.library.add("filled", [Document("a", "text", {})])
        gate.clear()
        adding = asyncio.create_task(service.library.add("empty", [Document("a", "text", {})]))
        searching = asyncio.create_task(service.library.search("filled", ["text"], SearchOptions()))
        await asyncio.sleep(0.1)
        await service.reload()
        await service.library.run(lambda corpora: corpora.delete("filled", "a"))
        await service.library.add("filled", [Document("b", "text", {})])
        gate.set()
        await adding
        assert service.library.corpora.corpus("empty")[0].fingerprint == "fake-1"
        # Vectors of query and document by both encoders.
        cosine = float(embedded("query: text")[0] @ embedded("text")[0])
        for found in (await searching, await service.library.search("filled", ["text"], SearchOptions())):
            ((hit,),) = found.hits
            assert hit.passage.document.id == "b"
            assert hit.score == pytest.approx(cosine, abs=1e-5)

    run(service, work)


def test_the_conflict_names_the_job_that_embeds_the_corpus_again_and_how_far_it_is(
    local: TestClient, bundles: Bundles
) -> None:
    local.put("/corpora/c")
    documents = {"documents": [{"id": str(i), "text": f"text {i}"} for i in range(3)]}
    local.post("/corpora/c/documents", json=documents).raise_for_status()
    local.post("/admin/reload").raise_for_status()
    bundles.open.clear()  # Nothing is embedded.
    job = local.post("/corpora/c/reembed").json()["id"]
    while local.get(f"/jobs/{job}").json()["total"] is None:
        time.sleep(0.01)
    said = f"Job {job} embeds the corpus again: 0 of 3 passages are done (GET /jobs/{job})"
    for path, body in (("search", {"query": "text"}), ("documents", documents)):
        refused = local.post(f"/corpora/c/{path}", json=body)
        assert refused.status_code == 409 and refused.json()["error"].endswith(said)
    bundles.open.set()


def test_everything_follows(local: TestClient) -> None:
    local.put("/corpora/c")
    documents = {"documents": [{"id": "a", "text": "a text"}]}
    local.post("/corpora/c/documents", json=documents).raise_for_status()
    answer = local.post("/admin/reload")
    assert (answer.status_code, answer.json()) == (200, {"old": "fake-1", "new": "fake-2"})
    for path, key in (("search", "query"), ("search", "queries")):
        sent = {"query": "a"} if key == "query" else {"queries": ["a", "b"]}
        refused = local.post(f"/corpora/c/{path}", json=sent)
        assert refused.status_code == 409 and "fake-1" in refused.json()["error"]
    assert local.post("/corpora/c/documents", json=documents).status_code == 409
    assert local.get("/corpora/c").json()["state"] == "stale"
    info = local.get("/info").json()
    assert (info["model_id"], info["fingerprint"], info["state"]) == ("turned", "fake-2", "ready")
    assert [model["id"] for model in local.get("/v1/models").json()["data"]] == ["turned"]
    assert local.post("/v1/embeddings", json={"input": "a"}).json()["model"] == "turned"
    answer = local.post("/embed", json={"inputs": "a"})
    assert answer.headers["x-model-fingerprint"] == "fake-2"
    assert np.allclose(answer.json(), -embedded("a"), atol=1e-6)
    metrics = local.get("/metrics").text
    assert re.findall(r"^isosphere_model\{.*", metrics, re.MULTILINE) == [
        'isosphere_model{engine="fake",fingerprint="fake-2",name="turned",precision="fp32"} 1.0'
    ]
    assert 'isosphere_reloads_total{outcome="done"} 1.0' in metrics
    local.delete("/corpora/c/documents/a")
    assert local.post("/corpora/c/documents", json=documents).status_code == 200, "embedded again"
    assert local.post("/corpora/c/search", json={"query": "a text"}).json()["hits"][0]["id"] == "a"


def engine_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith(("engine", "tokenizer")))


def not_whole() -> Model:
    raise BundleError("artifacts/x/tokenizer.json: altered")


def not_loading() -> Model:
    raise RuntimeError("no kernel for this graph")


@pytest.mark.parametrize(
    ("found", "status", "says"),
    [
        (not_whole, 422, "bundle: artifacts/x/tokenizer.json: altered"),
        (not_loading, 424, "artifacts/default: no kernel for this graph"),
        ("tampered", 424, "their cosine is -1.000000"),
        ("engine", 424, "no CUDA"),
    ],
)
def test_a_bad_bundle_leaves_the_old_one_serving(
    local: TestClient, bundles: Bundles, found: Callable[[], Model] | str, status: int, says: str
) -> None:
    def no_cuda(_: object) -> FakeEngine:
        raise EngineError("no CUDA")

    made = {
        "tampered": lambda: bundles.turned(golden=bundles.fake.manifest.golden),
        "engine": lambda: replace(bundles.turned(), load=no_cuda),
    }
    bundles.found = made[found] if isinstance(found, str) else found
    local.post("/embed", json={"inputs": "a"})
    before = engine_threads()
    answer = local.post("/admin/reload")
    assert (answer.status_code, set(answer.json())) == (status, {"error", "error_type"})
    assert says in answer.json()["error"]
    assert local.get("/info").json()["fingerprint"] == "fake-1"
    assert np.allclose(local.post("/embed", json={"inputs": "a"}).json(), embedded("a"), atol=1e-6)
    assert 'isosphere_reloads_total{outcome="failed"} 1.0' in local.get("/metrics").text
    assert engine_threads() == before, "the refused one's are gone"
    bundles.found = bundles.turned
    assert local.post("/admin/reload").status_code == 200


def test_one_reload_at_a_time_and_a_caller_who_leaves_stops_none(
    make_service: MakeService, run: Run, bundles: Bundles
) -> None:
    service = make_service(bundles.fake)

    async def work() -> None:
        await service.loaded.wait()
        bundles.may_load.clear()
        first = asyncio.create_task(service.reload())
        await asyncio.sleep(0.05)
        with pytest.raises(Conflict, match="a reload is running"):
            await service.reload()
        assert (await service.embed(["a"], EmbedOptions())).manifest.fingerprint == "fake-1"
        first.cancel()
        await asyncio.sleep(0.01)
        bundles.may_load.set()
        await service.encoders.settled()
        assert service.encoders.fingerprints[0] == "fake-2"

    run(service, work)


def test_a_drain_gives_a_reload_up(make_service: MakeService, run: Run, bundles: Bundles) -> None:
    service = make_service(bundles.fake)

    async def work() -> None:
        await service.loaded.wait()
        bundles.may_load.clear()
        reloading = asyncio.create_task(service.reload())
        await asyncio.sleep(0.05)
        assert await service.drain()
        with pytest.raises(Unhealthy, match="shutting down"):
            await reloading
        assert service.encoders.fingerprints[0] == "fake-1"
        bundles.may_load.set()

    run(service, work)


@pytest.mark.slow
def test_a_hangup_during_a_reload_is_followed_by_another(make_service: MakeService, bundles: Bundles) -> None:
    service = make_service(bundles.fake, port=0)
    opened: list[str] = []
    turned = bundles.found

    def found() -> Model:
        opened.append("")
        return turned()

    bundles.found = found

    async def main() -> None:
        server = Server(service)
        serving = asyncio.create_task(server.serve(sockets=bind(service.settings)))
        await service.loaded.wait()
        bundles.may_load.clear()
        first = asyncio.create_task(service.reload())
        while not opened:
            await asyncio.sleep(0.01)
        server.handle_hangup()
        server.handle_hangup()
        await asyncio.sleep(0.05)
        assert len(opened) == 1
        bundles.may_load.set()
        await first
        while len(opened) < 2:
            await asyncio.sleep(0.01)
        await service.encoders.settled()
        await asyncio.sleep(0.05)
        assert len(opened) == 2
        server.handle_exit(signal.SIGTERM, None)
        await serving

    asyncio.run(asyncio.wait_for(main(), 30))


def test_while_loading_there_is_nothing_to_replace(make_service: MakeService, run: Run, bundles: Bundles) -> None:
    bundles.may_load.clear()
    service = make_service(bundles.turned())

    async def work() -> None:
        with pytest.raises(Unhealthy, match="loading"):
            await service.reload()
        bundles.may_load.set()
        await service.loaded.wait()
        assert await service.reload() == [("turned", "fake-2", "fake-2")]

    run(service, work)


@pytest.mark.parametrize(
    ("peer", "status"),
    [
        ("127.0.0.1", 200),
        ("::1", 200),
        ("::ffff:127.0.0.1", 200),
        ("127.8.8.8", 200),
        ("10.0.0.1", 403),
        ("::ffff:10.0.0.1", 403),
        ("localhost.example.org", 403),
    ],
)
def test_only_the_own_machine_is_answered(
    make_service: MakeService,
    bundles: Bundles,
    wait_until_ready: Callable[[TestClient], None],
    peer: str,
    status: int,
) -> None:
    with TestClient(create_app(make_service(bundles.fake)), client=(peer, 5000)) as client:
        wait_until_ready(client)
        for relayed in ({"x-forwarded-for": "127.0.0.1"}, {"forwarded": "for=::1"}, {"origin": "http://127.0.0.1"}):
            assert client.post("/admin/reload", headers=relayed).status_code == 403
        answer = client.post("/admin/reload")
        assert answer.status_code == status
        if status == 403:
            assert answer.json()["error_type"] == "Unauthorized"
            assert client.get("/info").json()["fingerprint"] == "fake-1"
