"""Tests of several encoders in one server: the encoder of a request, and the encoder of a corpus."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from models.bundle.bundle import BundleError
from serving.inference.embeddings import EmbedOptions
from serving.inference.engine import Model
from serving.inference.fake_engine import FakeEngine
from serving.service import Service
from serving.settings import SettingsError, read_settings
from tests.conftest import PATIENCE
from tests.serving.shelf import Shelf, embedded, fingerprints, models

DOCUMENTS = {"documents": [{"id": "a", "text": "a text"}, {"id": "b", "text": "another"}]}
Run = Callable[[Service, Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.mark.parametrize(
    ("arguments", "environment", "folders"),
    [
        ((), None, ["artifacts/default"]),
        (("--bundle", "a"), None, ["a"]),
        (("--bundle", "a,b", "--port", "1", "--bundle=c d"), None, ["a,b", "c d"]),
        (("--bundle", "a:b"), None, ["a", "b"]),
        ((), "a:b", ["a", "b"]),
        (("--bundle", "a"), "b:c", ["a"]),
    ],
)
def test_bundles_are_given_again_or_in_a_list(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], environment: str | None, folders: list[str]
) -> None:
    if environment is not None:
        monkeypatch.setenv("ISOSPHERE_BUNDLE", environment)
    assert read_settings(arguments).bundles == tuple(map(Path, folders))


def test_no_bundle_at_all_is_refused() -> None:
    with pytest.raises(SettingsError, match="--bundle: must name a folder"):
        read_settings(["--bundle", ""])


def test_two_of_one_name_are_refused(shelf: Shelf) -> None:
    shelf.holds["copy"] = shelf.holds["fake"]
    with pytest.raises(BundleError, match=r"bundles/fake and .*/bundles/copy have the same name 'fake': export one"):
        shelf.service("fake", "turned", "copy")


ASKED = [
    ("/embed", {"inputs": "a b"}),
    ("/", {"inputs": ["a b"]}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a b"]}}),
    ("/rerank", {"query": "a", "texts": ["a b"]}),
    ("/v1/embeddings", {"input": "a b"}),
    ("/v2/embed", {"texts": ["a b"]}),
    ("/v1/rerank", {"query": "a", "documents": ["a b"]}),
    ("/v2/rerank", {"query": "a", "documents": ["a b"]}),
]
WITHOUT_VECTORS = [("/tokenize", {"inputs": "a b"}), ("/decode", {"ids": [5, 6]})]


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_requests_name_a_model(pair: TestClient, path: str, body: dict[str, Any]) -> None:
    for named, fingerprint in (
        ({}, "fake-1"),
        ({"model": None}, "fake-1"),
        ({"model": "fake"}, "fake-1"),
        ({"model": "turned"}, "fake-2"),
    ):
        answer = pair.post(path, json=body | named)
        assert (answer.status_code, answer.headers["x-model-fingerprint"]) == (200, fingerprint), answer.text
    assert pair.post("/v1/embeddings", json={"input": "a", "model": "turned"}).json()["model"] == "turned"


@pytest.mark.parametrize(("path", "body"), [*ASKED, *WITHOUT_VECTORS])
def test_an_unknown_model_is_refused_in_the_words_of_the_family(
    pair: TestClient, path: str, body: dict[str, Any]
) -> None:
    answer = pair.post(path, json=body | {"model": "text-embedding-3-small"})
    says = "model: there is no model 'text-embedding-3-small'; this server runs 'fake', 'turned'"
    expected: dict[str, Any] = {"error": says, "error_type": "NotFound"}
    if path.startswith("/v1/"):
        details = {"type": "invalid_request_error", "param": "model", "code": "model_not_found"}
        expected = {"error": {"message": says, **details}}
    elif path.startswith("/v2/"):
        expected = {"message": says}
    assert (answer.status_code, answer.json()) == (404, expected)


@pytest.mark.parametrize(("path", "body"), [*ASKED, *WITHOUT_VECTORS])
def test_where_one_model_is_served_it_answers_whatever_the_name(
    client: TestClient, path: str, body: dict[str, Any]
) -> None:
    assert client.post(path, json=body | {"model": "text-embedding-3-small"}).status_code == 200


def test_paths_name_a_model(pair: TestClient) -> None:
    assert models(pair) == ["fake", "turned"]
    assert pair.get("/v1/models/turned").json()["id"] == "turned"
    for name, sign in (("fake", 1), ("turned", -1)):
        answer = pair.post(f"/models/{name}/pipeline/feature-extraction", json={"inputs": "a b"})
        assert np.allclose(answer.json(), sign * embedded("a b"), atol=1e-6)
        body = {"inputs": {"source_sentence": "a", "sentences": ["b"]}}
        answer = pair.post(f"/models/{name}/pipeline/sentence-similarity", json=body)
        assert answer.headers["x-model-fingerprint"] == fingerprints(pair)[name]
    assert pair.get("/models/turned/report").json() == {"format": 1}
    assert pair.get("/models/fake/report").status_code == 404
    assert pair.get("/models/x/report").status_code == 404


def test_what_is_told_of_them(pair: TestClient) -> None:
    assert pair.get("/info").json()["model_id"] == "fake"
    assert fingerprints(pair) == {"fake": "fake-1", "turned": "fake-2"}
    assert pair.get("/info", params={"model": "x"}).status_code == 404
    metrics = pair.get("/metrics").text
    assert metrics.count('isosphere_model{engine="fake",') == 2


def test_a_corpus_keeps_to_the_model_that_it_was_created_for(pair: TestClient) -> None:
    assert pair.put("/corpora/first").json()["fingerprint"] is None
    created = pair.put("/corpora/second", json={"model": "turned"})
    assert (created.status_code, created.json()["fingerprint"], created.json()["dim"]) == (201, "fake-2", 64)
    assert pair.put("/corpora/third", json={"model": "x"}).status_code == 404
    assert pair.post("/corpora/second/search", json={"query": "a text"}).json()["hits"] == []
    cosine = float(embedded("query: a text")[0] @ embedded("a text")[0])
    for name, fingerprint, sign in (("first", "fake-1", 1), ("second", "fake-2", -1)):
        pair.post(f"/corpora/{name}/documents", json=DOCUMENTS).raise_for_status()
        corpus = pair.get(f"/corpora/{name}").json()
        assert (corpus["fingerprint"], corpus["state"]) == (fingerprint, "ready")
        (hit,) = pair.post(f"/corpora/{name}/search", json={"query": "a text", "k": 1, "with_vector": True}).json()[
            "hits"
        ]
        assert hit["id"] == "a"
        assert hit["score"] == pytest.approx(cosine, abs=1e-5), "query and document by one of them"
        assert np.allclose(hit["vector"], sign * embedded("a text")[0], atol=1e-6)
        assert pair.put(f"/corpora/{name}", json={"description": "d"}).status_code == 200
    assert pair.put("/corpora/second", json={"model": "turned"}).status_code == 200
    refused = pair.put("/corpora/second", json={"model": "fake", "description": "kept out"})
    assert refused.status_code == 409 and "is embedded by another encoder" in refused.json()["error"]
    assert pair.get("/corpora/second").json()["description"] == "d"


@pytest.mark.parametrize("asked", [{"query": "a text"}, {"vector": [1.0] * 64}])
def test_vectors_of_one_search_come_from_one_encoder(pair: TestClient, asked: dict[str, Any]) -> None:
    for name, options in (("empty", {}), ("own", {"vectors": "own"}), ("first", {}), ("second", {"model": "turned"})):
        pair.put(f"/corpora/{name}", json=options).raise_for_status()
        if name not in ("empty", "own"):
            pair.post(f"/corpora/{name}/documents", json=DOCUMENTS).raise_for_status()
    for names in (["first", "second"], ["empty", "second", "first"]):
        refused = pair.post("/search", json={"corpora": names, **asked})
        assert refused.status_code == 409 and "different encoders" in refused.json()["error"]
    for names in (["empty", "second"], ["second", "empty"], ["own", "second"], ["second", "own"]):
        found = pair.post("/search", json={"corpora": names, **asked})
        assert {hit["corpus"] for hit in found.json()["hits"]} == {"second"}, found.text


def test_a_corpus_outlives_its_model(pair: TestClient, shelf: Shelf) -> None:
    pair.put("/corpora/c", json={"model": "turned"})
    pair.post("/corpora/c/documents", json=DOCUMENTS).raise_for_status()
    assert pair.delete("/admin/models/turned").status_code == 204
    assert pair.get("/corpora/c").json()["state"] == "stale"
    for path, body in (("search", {"query": "a"}), ("documents", DOCUMENTS)):
        refused = pair.post(f"/corpora/c/{path}", json=body)
        assert refused.status_code == 409 and "fake-2" in refused.json()["error"]
    pair.post("/admin/models", json={"bundle": str(shelf.folder / "turned")}).raise_for_status()
    assert pair.post("/corpora/c/search", json={"query": "a text"}).json()["hits"][0]["id"] == "a"


def test_models_share_the_threads_of_the_server(shelf: Shelf, run: Run) -> None:
    """Flood one model on a single thread. A request for the other model has the next batch."""
    began, steps = list[str](), threading.Semaphore(0)

    class Stepping(FakeEngine):
        batch_tokens = 128

        def __init__(self, name: str) -> None:
            self.model = name

        def embed(self, batch: Any, *, alone: bool = False) -> Any:
            began.append(self.model)
            assert steps.acquire(timeout=PATIENCE)
            return super().embed(batch)

    def open_bundle(name: str) -> Model:
        manifest = replace(shelf.bundles.fake.manifest, name=name, fingerprint=name, golden=[])
        return Model(manifest, lambda _: Stepping(name))

    shelf.holds = {name: partial(open_bundle, name) for name in ("flooded", "calm")}
    service = shelf.service("flooded", "calm", threads=1)

    async def work() -> None:
        await service.loaded.wait()
        flood = asyncio.create_task(service.embed(["a " * 100] * 10, EmbedOptions()))
        while not began:
            await asyncio.sleep(0.001)
        calm = asyncio.create_task(service.embed(["a"], EmbedOptions(), model="calm"))
        await asyncio.sleep(0.05)
        assert began == ["flooded"]
        steps.release(2)
        await calm
        steps.release(20)
        await flood

    run(service, work)
    assert began == ["flooded", "calm", *["flooded"] * 9]


def test_a_failing_engine_is_named(shelf: Shelf, run: Run) -> None:
    broken = threading.Event()

    class Broken(FakeEngine):
        def embed(self, batch: Any, *, alone: bool = False) -> Any:
            if broken.is_set():
                raise RuntimeError("out of memory")
            return super().embed(batch)

    manifest = replace(shelf.bundles.fake.manifest, name="broken", fingerprint="fake-6")
    shelf.holds["broken"] = lambda: Model(manifest, lambda _: Broken())
    service = shelf.service("fake", "broken")

    async def work() -> None:
        await service.loaded.wait()
        broken.set()
        for _ in range(3):
            with pytest.raises(Exception, match="out of memory"):
                await service.embed(["a"], EmbedOptions(), model="broken")
        assert service.readiness.state == "failing" and "batches of broken failed" in service.readiness.reason
        assert (await service.embed(["a"], EmbedOptions())).manifest.name == "fake"
        broken.clear()
        assert (await service.probed()).state == "ready"

    run(service, work)
