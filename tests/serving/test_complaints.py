"""Tests of bugs that users reported about other servers. The docstrings name the threads on GitHub."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from huggingface_hub import InferenceClient

from models.bundle.tokenizer import Tokens
from serving.app import create_app
from serving.inference.engine import Embedded, EngineOptions
from serving.inference.fake_engine import DIM, FakeEngine
from serving.service import Service
from tests.conftest import PATIENCE
from tests.serving.engines import model

MakeService = Callable[..., Service]
CL100K = [9906, 1917, 11, 420, 374, 8245, 100_257]
"""Ids of another tokenizer, as LangChain's OpenAIEmbeddings sends them."""


@dataclass
class Recording(FakeEngine):
    """Engine that records the padded tokens and the number of texts of its batches."""

    padded: list[int] = field(default_factory=list)
    texts: list[int] = field(default_factory=list)

    def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
        self.padded.append(len(batch) * max(map(len, batch)))
        self.texts.append(len(batch))
        return super().embed(batch, alone=alone)


def asking(service: Service, work: Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]]) -> None:
    """Run `work` with a client of the app, after the app is ready."""

    async def main() -> None:
        app = create_app(service)
        async with asyncio.timeout(PATIENCE), app.router.lifespan_context(app) as state:
            await service.loaded.wait()

            async def with_state(scope: Any, receive: Any, send: Any) -> None:
                await app({**scope, "state": dict(state or {})}, receive, send)

            transport = httpx.ASGITransport(app=with_state)
            async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=PATIENCE) as client:
                await work(client)

    asyncio.run(main())


def test_ids_of_another_tokenizer_are_refused_and_the_remedy_is_named(client: TestClient) -> None:
    """langchain-ai/langchain #12854, #30574; huggingface/text-embeddings-inference #273."""
    answer = client.post("/v1/embeddings", json={"input": [CL100K], "model": "text-embedding-ada-002"})
    assert answer.status_code == 400
    assert "check_embedding_ctx_length=False" in answer.json()["error"]["message"]


@pytest.mark.parametrize("texts", [33, 60, 1000, 2048])
def test_more_than_32_texts_are_split_by_the_server(client: TestClient, texts: int) -> None:
    """Zoo-Code-Org/Zoo-Code #335, HKUDS/LightRAG #319, run-llama/llama_index #11696, langchain #21188."""
    sent = [f"text {i}" for i in range(texts)]
    vectors = client.post("/embed", json={"inputs": sent}).json()
    assert np.shape(vectors) == (texts, DIM)
    assert vectors[-1] == pytest.approx(client.post("/embed", json={"inputs": sent[-1]}).json()[0], abs=1e-6)


def test_under_overload_requests_are_answered_or_told_to_come_back(make_service: MakeService) -> None:
    """text-embeddings-inference #470, #744, #811, #424, #305: the process panicked."""
    service = make_service(max_queued_tokens=2000, max_request_tokens=2000)

    async def work(client: httpx.AsyncClient) -> None:
        body = {"inputs": ["some words to embed"] * 20}
        answers = await asyncio.gather(*(client.post("/embed", json=body) for _ in range(200)))
        kinds = {answer.status_code for answer in answers}
        assert kinds == {200, 429}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status_code == 429)
        assert (await client.post("/embed", json=body)).status_code == 200, "it goes on"

    asking(service, work)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
def test_the_native_number_of_dimensions_is_legal(client: TestClient, path: str) -> None:
    """mem0ai/mem0 #3101, #3133; ogx-ai/ogx #5109; vllm-project/vllm #15465."""
    whole = client.post(path, json={"input": "a"}).json()
    assert client.post(path, json={"input": "a", "dimensions": DIM}).json() == whole


def test_null_is_absent(client: TestClient) -> None:
    """BerriAI/litellm #19174, through agent0ai/agent-zero #1429, langgenius/dify #35784, eneo-ai/eneo #339."""
    optional = dict.fromkeys(["encoding_format", "dimensions", "user", "model", "prompt_name", "truncate"])
    plain = client.post("/v1/embeddings", json={"input": ["a"]}).json()
    assert client.post("/v1/embeddings", json={"input": ["a"], **optional}).json() == plain


def test_a_text_and_a_list_of_one_are_admitted_alike(make_service: MakeService) -> None:
    """text-embeddings-inference #662: a single text got 429 where a list of one passed."""
    service = make_service(max_queued_tokens=150, max_request_tokens=150)

    async def work(client: httpx.AsyncClient) -> None:
        for inputs in ("a few words", ["a few words"]):
            answers = await asyncio.gather(*(client.post("/embed", json={"inputs": inputs}) for _ in range(20)))
            assert {answer.status_code for answer in answers} == {200}

    asking(service, work)


def test_no_batch_is_larger_than_the_budget_whatever_is_sent(make_service: MakeService) -> None:
    """michaelfeil/infinity #517 (memory climbs), pvliesdonk/markdown-vault-mcp #159 (a corpus in one call)."""
    engine = Recording()

    def load(_: EngineOptions) -> Recording:
        return engine

    async def work(client: httpx.AsyncClient) -> None:
        texts = ["word " * (1 + 7 * i % 120) for i in range(2000)]
        assert len((await client.post("/embed", json={"inputs": texts})).json()) == 2000

    asking(make_service(model(load), max_batch_tokens=512), work)
    assert sum(engine.texts) >= 2000
    assert max(engine.padded) <= 512


def test_texts_that_come_one_by_one_are_embedded_together(make_service: MakeService) -> None:
    """open-webui/open-webui #5698, #4265; ray-project/ray #46693."""
    engine = Recording()

    def load(_: EngineOptions) -> Recording:
        return engine

    async def work(client: httpx.AsyncClient) -> None:
        sent = [{"input": [f"text number {i}"]} for i in range(100)]
        engine.texts.clear()
        answers = await asyncio.gather(*(client.post("/v1/embeddings", json=one) for one in sent))
        assert {answer.status_code for answer in answers} == {200}

    asking(make_service(model(load)), work)
    assert sum(engine.texts) == 100
    assert len(engine.texts) < 50


def test_an_address_is_a_text_like_any_other(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm-project/vllm #57157, sgl-project/sglang #27315, zylon-ai/private-gpt #2192: servers that fetch."""

    def dial(*_: object, **__: object) -> None:
        raise AssertionError("the server called somebody")

    monkeypatch.setattr(socket, "getaddrinfo", dial)
    monkeypatch.setattr(socket.socket, "connect", dial)
    url = "http://169.254.169.254/latest/meta-data"
    assert client.post("/embed", json={"inputs": [url, "file:///etc/passwd"]}).status_code == 200
    assert client.post("/v2/embed", json={"texts": [url]}).status_code == 200
    assert client.post("/rerank", json={"query": url, "texts": [url]}).status_code == 200


def test_what_is_deleted_is_found_no_more(client: TestClient) -> None:
    """facebookresearch/faiss #1784, #3339, #3128, #1991: some indexes can't delete."""
    client.put("/corpora/c")
    documents = [{"id": str(i), "text": f"one two {i}"} for i in range(20)]
    client.post("/corpora/c/documents", json={"documents": documents})
    assert client.delete("/corpora/c/documents/7").status_code == 204
    hits = client.post("/corpora/c/search", json={"query": "one two 7", "k": 20}).json()["hits"]
    assert sorted(int(hit["id"]) for hit in hits) == [i for i in range(20) if i != 7]


@pytest.mark.slow
def test_a_payload_of_megabytes_is_no_error_of_the_server(client: TestClient) -> None:
    """meilisearch/meilisearch #4301: a wrong limit, and a 500 on 4.7 MB."""
    large = ["word " * 10_000] * 94
    assert client.post("/embed", json={"inputs": large}).status_code == 200
    beyond = client.post("/embed", content=b'{"inputs": "' + b"a" * 32_000_000 + b'"}')
    assert beyond.status_code == 413
    assert "32000000" in beyond.json()["error"]


@pytest.mark.slow
def test_hugging_faces_client_is_answered_at_the_bare_address(
    launch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """langchain-ai/langchain #29787: HuggingFaceEndpointEmbeddings broke against servers of one's own."""
    # With this variable, the client would not even contact this machine.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    server = launch()
    hub = InferenceClient(model=server.address)
    vectors = hub.feature_extraction(["one two", "three"], normalize=True, truncate=True, truncation_direction="left")
    assert np.allclose(vectors, server.client.post("/embed", json={"inputs": ["one two", "three"]}).json())
    assert np.shape(hub.feature_extraction("one two")) == (1, DIM)
    prompted = hub.feature_extraction("one two", prompt_name="query")
    assert np.allclose(prompted, hub.feature_extraction("query: one two"))
    cosines = hub.sentence_similarity("one two", ["one two", "three"])
    assert cosines[0] == pytest.approx(1, abs=1e-6)


def test_no_answer_says_ready_before_the_vectors_are_the_bundles(
    make_service: MakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """text-embeddings-inference #749, #278; infinity #336; UKPLab/sentence-transformers #2311, #3584."""

    class Otherwise(FakeEngine):
        def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
            vectors, norms = super().embed(batch, alone=alone)
            return Embedded(np.roll(vectors, 1, axis=1), norms)

    async def work(client: httpx.AsyncClient) -> None:
        assert (await client.get("/readyz")).status_code == 503
        refused = await client.post("/embed", json={"inputs": "a"})
        assert refused.status_code == 503
        assert "log" in refused.json()["error"] and "cosine" in caplog.text

    asking(make_service(model(lambda _: Otherwise())), work)
