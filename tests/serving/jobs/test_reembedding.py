"""Tests of jobs that re-embed corpora with another encoder, over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.corpora.corpora import Corpora
from serving.corpora.values import Corpus
from serving.jobs.kinds import REEMBED
from serving.operations.threads import check_cancelled
from tests.conftest import PATIENCE
from tests.serving.conftest import MakeService
from tests.serving.shelf import Shelf, embedded
from tests.serving.test_moving_corpora import DOCUMENTS, best, ended


def test_a_corpus_moves_to_another_encoder(pair: TestClient) -> None:
    pair.put("/corpora/c", json={"model": "fake"})
    pair.post("/corpora/c/documents", json={"documents": DOCUMENTS}).raise_for_status()
    before = best(pair, "b is a text")
    job = ended(pair, pair.post("/corpora/c/reembed", json={"model": "turned"}))
    assert (job["state"], job["done"], job["total"]) == ("succeeded", 6, 6)
    assert job["result"] == {"fingerprint": "fake-2", "model": "turned", "truncated": 0}
    assert pair.get("/corpora/c").json()["fingerprint"] == "fake-2"
    after = pair.post("/corpora/c/search", json={"query": "b is a text", "k": 1, "with_vector": True}).json()["hits"][0]
    assert (after["id"], after["score"]) == ("b", before["score"])
    turned = pair.post("/v1/embeddings", json={"input": "b is a text", "model": "turned"}).json()["data"][0][
        "embedding"
    ]
    assert after["vector"] == pytest.approx(turned, abs=1e-6)
    again = ended(pair, pair.post("/corpora/c/reembed", json={"model": "turned"}))
    assert (again["state"], again["done"], again["total"]) == ("succeeded", 6, 6)
    assert pair.post("/corpora/c/reembed", json={"model": "nope"}).status_code == 404


@pytest.mark.parametrize("before", ["read_fresh", "swap"])
def test_a_reload_while_a_corpus_moves_moves_it_to_the_encoder_that_serves(
    pair: TestClient, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Reload while a corpus is re-embedded, even too late to be noticed before the swap."""
    pair.put("/corpora/c", json={"model": "fake"})
    pair.post("/corpora/c/documents", json={"documents": DOCUMENTS}).raise_for_status()
    step, reloaded = getattr(Corpora, before), list[int]()

    def reloading(self: Corpora, *asked: Any) -> Any:
        if not reloaded:
            shelf.holds["turned"] = shelf.named("turned", "fake-3")
            reloaded.append(pair.post("/admin/reload", params={"model": "turned"}).status_code)
        return step(self, *asked)

    monkeypatch.setattr(Corpora, before, reloading)
    job = ended(pair, pair.post("/corpora/c/reembed", json={"model": "turned"}))
    assert reloaded == [200]
    assert (job["state"], job["done"], job["total"]) == ("succeeded", 6, 6)
    assert job["result"] == {"fingerprint": "fake-3", "model": "turned", "truncated": 0}
    assert (pair.get("/corpora/c").json()["fingerprint"], best(pair, "b is a text")["id"]) == ("fake-3", "b")


def test_a_corpus_whose_new_encoder_is_taken_away_keeps_the_old_one(
    pair: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.put("/corpora/c", json={"model": "fake"})
    pair.post("/corpora/c/documents", json={"documents": DOCUMENTS}).raise_for_status()
    read_fresh = Corpora.read_fresh

    def removing(self: Corpora, name: str) -> Any:
        assert pair.delete("/admin/models/turned").status_code == 204
        return read_fresh(self, name)

    monkeypatch.setattr(Corpora, "read_fresh", removing)
    job = ended(pair, pair.post("/corpora/c/reembed", json={"model": "turned"}))
    assert job["state"] == "failed"
    assert "there is no model 'turned'" in job["errors"][0]["error"]
    assert (pair.get("/corpora/c").json()["fingerprint"], best(pair, "b is a text")["id"]) == ("fake-1", "b")


@pytest.mark.parametrize("documents", [[], DOCUMENTS])
def test_a_corpus_of_another_encoder_is_told_how_it_moves(pair: TestClient, documents: list[dict[str, Any]]) -> None:
    pair.put("/corpora/c", json={"model": "fake"})
    if documents:
        pair.post("/corpora/c/documents", json={"documents": documents}).raise_for_status()
    refused = pair.put("/corpora/c", json={"model": "turned"})
    assert refused.status_code == 409
    assert "'c' is embedded by another encoder: POST /corpora/c/reembed replaces the encoder" in refused.json()["error"]
    job = ended(pair, pair.post("/corpora/c/reembed", json={"model": "turned"}))
    assert (job["state"], job["done"], job["total"]) == ("succeeded", len(documents), len(documents))
    assert pair.put("/corpora/c", json={"model": "turned"}).status_code == 200


def test_a_corpus_that_is_nobody_s_yet_is_for_whom_it_is_asked_for(pair: TestClient) -> None:
    assert pair.put("/corpora/c").json()["fingerprint"] is None
    bound = pair.put("/corpora/c", json={"model": "turned"})
    assert (bound.status_code, pair.get("/corpora/c").json()) == (200, bound.json())
    assert pair.put("/corpora/c", json={"model": "turned"}).json() == bound.json()
    assert pair.put("/corpora/c", json={"model": "fake", "description": "other"}).status_code == 409
    assert pair.get("/corpora/c").json() == bound.json(), "all or none"
    pair.post("/corpora/c/documents", json={"documents": DOCUMENTS}).raise_for_status()
    filled = pair.get("/corpora/c").json()
    assert (filled["fingerprint"], filled["documents"]) == (bound.json()["fingerprint"], len(DOCUMENTS))


@pytest.mark.parametrize("work", ["search", "put"])
def test_an_encoder_that_comes_during_a_request(pair: TestClient, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """Change the encoder between a request's embedding and its search. The request is repeated with the new encoder."""
    pair.put("/corpora/c", json={"model": "fake"})
    pair.post("/corpora/c/documents", json={"documents": DOCUMENTS}).raise_for_status()
    done = getattr(Corpora, work)

    def moved(self: Corpora, *asked: Any) -> Any:
        rows = self.stale("c", "fake-2", 100)
        if rows:
            self.refresh("c", "fake-2", [key for key, _ in rows], embedded(*(text for _, text in rows)))
            assert self.swap("c", "fake-2")
        return done(self, *asked)

    monkeypatch.setattr(Corpora, work, moved)
    if work == "search":
        assert best(pair, "b is a text")["text"]
    else:
        pair.post("/corpora/c/documents", json={"documents": [{"id": "z", "text": "more"}]}).raise_for_status()
        assert best(pair, "more")["id"] == "z"
    assert pair.get("/corpora/c").json()["fingerprint"] == "fake-2"


def test_a_job_that_is_cancelled_reads_no_further(pair: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel a job, because reading millions of documents takes a minute and a stopping server waits for its jobs."""
    begun, ended = threading.Event(), threading.Event()

    def endless(*_: object) -> None:
        begun.set()
        try:
            while True:
                check_cancelled()
        finally:
            ended.set()

    monkeypatch.setattr(Corpora, "read_fresh", endless)
    pair.put("/corpora/c", json={"model": "fake"})
    pair.post("/corpora/c/documents", json={"documents": DOCUMENTS}).raise_for_status()
    job = pair.post("/corpora/c/reembed", json={"model": "turned"}).json()["id"]
    assert begun.wait(PATIENCE)
    pair.delete(f"/jobs/{job}").raise_for_status()
    assert ended.wait(PATIENCE)


def test_a_corpus_needs_a_model_that_exists_also_on_a_server_of_one_model(
    client: TestClient, refuses: Callable[..., None]
) -> None:
    unknown = (404, "NotFound", "model: there is no model 'nope'")
    refuses(unknown, "PUT", "/corpora/c", json={"model": "nope"})
    assert client.get("/corpora/c").status_code == 404
    client.put("/corpora/c")
    client.post("/corpora/c/documents", json={"documents": DOCUMENTS}).raise_for_status()
    for verb in ("reembed", "adapt"):
        refuses(unknown, "POST", f"/corpora/c/{verb}", json={"model": "nope"})


def test_a_job_for_a_model_that_is_gone_fails(make_service: MakeService, run: Callable[..., None]) -> None:
    """Submit the job directly, as a job that was submitted before a restart without the model."""
    service = make_service()

    async def ends() -> None:
        await service.loaded.wait()
        await service.library.run(lambda corpora: corpora.create(Corpus("c")))
        job = await service.jobs.submit(REEMBED, "c", {"model": "gone"})
        async for seen in service.jobs.events(job.id):
            job = seen or job
        assert (job.state, job.error_count) == ("failed", 1)

    run(service, ends)
