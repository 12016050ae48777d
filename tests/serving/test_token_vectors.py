"""Tests of /embed_all and late interaction with token vectors, of the fake engine and of real bundles."""

from __future__ import annotations

import asyncio
import shutil
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fastapi.testclient import TestClient

from models.bundle import bundle, sources
from models.bundle.tokenizer import Tokens
from models.export import assembly
from serving.app import create_app
from serving.commands.starting import local_corpora
from serving.corpora.stores import STORES
from serving.inference.embeddings import EmbedOptions
from serving.inference.engine import EachToken, Model
from serving.inference.engines import ENGINES
from serving.inference.fake_engine import DIM, FakeEngine
from serving.inference.relevance import late_interaction
from serving.service import Service
from serving.settings import Settings
from tests.serving.engines import Gate, model

Refuses = Callable[..., None]
Run = Callable[[Service, Callable[[], Coroutine[Any, Any, None]]], None]
LONG = "word " * 200


def directions(text: str) -> Any:
    """Return the fake engine's token vectors, including special tokens."""
    engine = FakeEngine()
    return engine.embed_tokens(engine.tokenize([text], "right"))[0]


def test_every_token_has_its_vector_also_the_special_ones(client: TestClient) -> None:
    answer = client.post("/embed_all", json={"inputs": ["a b c", ""]})
    first, empty = answer.json()
    assert (len(first), len(empty)) == (5, 2)
    np.testing.assert_allclose(first, directions("a b c"), rtol=1e-6)
    assert client.post("/embed_all", json={"inputs": "a b c"}).json() == [first]
    assert (answer.headers["x-compute-tokens"], answer.headers["x-truncated-inputs"]) == ("7", "0")
    assert answer.headers["x-model-fingerprint"] == "fake-1"


def test_prompts_ids_and_truncation_are_those_of_embed(client: TestClient) -> None:
    def vectors(**body: Any) -> Any:
        return client.post("/embed_all", json=body).json()

    assert (
        vectors(inputs="a", prompt_name="query") == vectors(inputs="query: a") == vectors(inputs="a", prompt="query: ")
    )
    (pieces,) = client.post("/tokenize", json={"inputs": "one two"}).json()
    assert vectors(inputs=[piece["id"] for piece in pieces]) == vectors(inputs="one two")
    answer = client.post("/embed_all", json={"inputs": ["a", f"{LONG} end"], "truncation_direction": "left"})
    assert answer.headers["x-truncated-inputs"] == "1"
    np.testing.assert_allclose(answer.json()[1][-2], directions("end")[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("refusal", "body"),
    [
        ((413, "Validation", "inputs.1: 202 tokens"), {"inputs": ["a", LONG], "truncate": False}),
        ((422, "Validation", "prompt_name: the model has no prompt 'x'"), {"inputs": "a", "prompt_name": "x"}),
        ((422, "Validation", "normalize: is not supported"), {"inputs": "a", "normalize": True}),
        ((422, "Validation", "dimensions: is not supported"), {"inputs": "a", "dimensions": 8}),
        ((400, "Empty", "inputs: "), {"inputs": []}),
        ((413, "Validation", "inputs: 2049 texts"), {"inputs": ["a"] * 2049}),
    ],
)
def test_embed_all_refuses(refuses: Refuses, refusal: Any, body: Any) -> None:
    refuses(refusal, "POST", "/embed_all", json=body)


def test_an_answer_beyond_the_limit_is_refused_before_it_is_computed(
    make_service: Callable[..., Service], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make_service(max_unread_bytes=13 * DIM * 10)
    monkeypatch.setattr(FakeEngine, "embed_tokens", None)
    with TestClient(create_app(service)) as client:
        client.portal.call(service.loaded.wait)  # type: ignore[union-attr]
        answer = client.post("/embed_all", json={"inputs": ["a b c d", "a b c d"]})
        assert answer.status_code == 413
        assert answer.json()["error"].startswith(
            "inputs: the texts have 12 tokens, but a request for token vectors may have at most 10"
        )


def test_tokens_and_texts_share_a_batch_and_each_gets_its_own(run: Run, make_service: Callable[..., Service]) -> None:
    gate = Gate()
    gate.open.set()
    service = make_service(model(lambda _: gate))
    engine = FakeEngine()

    async def work() -> None:
        await service.loaded.wait()
        gate.open.clear()
        batches: list[list[bool]] = []

        def watched(batch: Sequence[Tokens], *, alone: bool) -> Any:
            batches.append([isinstance(one, EachToken) for one in batch])
            return run_batch(batch, alone=alone)

        embedder = service.encoders.default.ready_embedder
        run_batch, embedder.batcher._embed = embedder.batcher._embed, watched
        first = asyncio.create_task(service.embed(["first"], EmbedOptions()))
        await asyncio.sleep(0.05)
        texts = asyncio.create_task(service.embed(["a b", "c"], EmbedOptions()))
        tokens = asyncio.create_task(embedder.embed_tokens(["a b", "c d e"], EmbedOptions(), most=10**6))
        await asyncio.sleep(0.05)
        gate.open.set()
        await first
        (expected,) = engine.embed(engine.tokenize(["c"], "right")).vectors
        np.testing.assert_array_equal((await texts).vectors[1], expected)
        for own, text in zip((await tokens).by_text, ("a b", "c d e"), strict=True):
            np.testing.assert_array_equal(own, directions(text))
        assert [sorted(batch) for batch in batches] == [[False], [False, False, True, True]]

    run(service, work)


def test_a_key_is_charged_for_tokens_as_in_embed(client: TestClient) -> None:
    before, after = (
        client.post(path, json={"inputs": ["a b c", "d"]}).headers["x-compute-tokens"]
        for path in ("/embed", "/embed_all")
    )
    assert before == after


def slow_late_interaction(query: str, text: str) -> float:
    """Compute MaxSim by loops, over words only."""
    best = []
    for one in directions(query)[1:-1]:
        cosines = [float(one @ two / np.linalg.norm(one) / np.linalg.norm(two)) for two in directions(text)[1:-1]]
        best.append(max(cosines))
    return float(np.mean(best))


def test_late_interaction_orders_by_the_best_token_for_each_of_the_query(client: TestClient) -> None:
    texts = ["x y z", "b", "z a q b", "a b", "a b"]
    body = {"query": "a b", "texts": texts, "method": "late_interaction", "prompt": ""}
    ranks = client.post("/rerank", json=body).json()
    expected = {i: slow_late_interaction("a b", text) for i, text in enumerate(texts)}
    for rank in ranks:
        assert rank["score"] == pytest.approx(expected[rank["index"]], abs=2e-6)
    assert [rank["index"] for rank in ranks] == sorted(expected, key=lambda i: (-round(expected[i], 5), i))
    assert ranks[0]["score"] == 1, "every word of the query is in the text"
    squashed = client.post("/rerank", json=body | {"raw_scores": False}).json()
    assert squashed[0]["score"] == pytest.approx(1 / (1 + np.exp(-1)), abs=1e-6)


def test_late_interaction_takes_no_memory_for_all_pairs_of_tokens() -> None:
    texts = [Tokens(np.full(1000, 7), 1000) for _ in range(21)]
    vectors = np.ones((21_000, 1), dtype=np.float32)
    tracemalloc.start()
    try:
        assert late_interaction(vectors, vectors[:, 0], texts, []).tolist() == [1] * 20
        assert tracemalloc.get_traced_memory()[1] < 20e6, "all cosines take 80 MB"
    finally:
        tracemalloc.stop()


def test_an_empty_text_is_compared_by_its_special_tokens(client: TestClient) -> None:
    body = {"query": "a", "texts": ["", "a"], "method": "LATE_INTERACTION", "prompt": ""}
    assert [rank["index"] for rank in client.post("/rerank", json=body).json()] == [1, 0]


@pytest.fixture
def corpus(client: TestClient) -> str:
    texts = {"one": "b a", "two": "a b c d e f", "three": "x y z", "four": "a"}
    client.put("/corpora/words")
    documents = [{"id": name, "text": text} for name, text in texts.items()]
    assert client.post("/corpora/words/documents", json={"documents": documents}).status_code == 200
    return "/corpora/words/search"


def hits(client: TestClient, path: str, **body: Any) -> list[tuple[str, float]]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return [(hit["id"], hit["score"]) for hit in answer.json()["hits"]]


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_a_search_reranks_its_first_hits(client: TestClient, corpus: str, mode: str) -> None:
    rerank = {"method": "late_interaction", "candidates": 10}
    found = hits(client, corpus, query="a b", mode=mode, rerank=rerank)
    texts = {hit["id"]: hit["text"] for hit in client.post(corpus, json={"query": "a b", "mode": mode}).json()["hits"]}
    body = {"query": "a b", "texts": list(texts.values()), "method": "late_interaction"}
    ranked = client.post("/rerank", json=body).json()
    assert found == [(list(texts)[rank["index"]], rank["score"]) for rank in ranked]


def test_a_page_of_reranked_hits(client: TestClient, corpus: str) -> None:
    rerank = {"method": "late_interaction", "candidates": 3}
    every = hits(client, corpus, query="a b", k=3, rerank=rerank)
    candidates = [name for name, _ in hits(client, corpus, query="a b", k=3)]
    assert sorted(name for name, _ in every) == sorted(candidates), "only the first hits are reranked"
    assert hits(client, corpus, query="a b", k=1, offset=1, rerank=rerank) == every[1:2]
    assert hits(client, corpus, query="a b", k=3, min_score=every[1][1], rerank=rerank) == every[:2]
    answer = client.post(corpus, json={"queries": ["a b", "x"], "k": 1, "rerank": rerank}).json()
    assert [result["cursor"] for result in answer["results"]] == [None, None]
    assert answer["results"][0]["hits"][0]["id"] == every[0][0]
    assert hits(client, "/corpora/words/search", query="a b", k=3, filter={"no": 1}, rerank=rerank) == []


@pytest.mark.parametrize(
    ("says", "body"),
    [
        ("rerank: compares texts", {"vector": [1.0] * DIM}),
        ("rerank.candidates: must be at least offset plus k, which is 110", {"query": "a", "k": 10, "offset": 100}),
        ("cursor: does not work with rerank", {"query": "a", "cursor": "abc"}),
        ("rerank.method: ", {"query": "a", "rerank": {"method": "other"}}),
        ("rerank.depth: ", {"query": "a", "rerank": {"method": "late_interaction", "depth": 1}}),
    ],
)
def test_a_search_refuses_to_rerank(client: TestClient, refuses: Refuses, corpus: str, says: str, body: Any) -> None:
    refuses((422, "Validation", says), "POST", corpus, json={"rerank": {"method": "late_interaction"}} | body)


def served(opened: Model, folder: Path) -> Iterator[TestClient]:
    settings = Settings(data=folder, no_demo=True, device="cpu")
    service = Service(settings, opened, local_corpora(settings, STORES["memory"](folder)))
    with TestClient(create_app(service)) as client:
        client.portal.call(service.loaded.wait)  # type: ignore[union-attr]
        yield client


TEXTS = ["The old man and the sea.", "", "a", "a red bird can sing " * 30]


def oracle(folder: Path, texts: list[str], max_length: int) -> list[Any]:
    """Return the last hidden states of transformers, one text at a time."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        encoded = [tokenizer(text, return_tensors="pt", truncation=True, max_length=max_length) for text in texts]
        return [encoder(**one).last_hidden_state[0].numpy() for one in encoded]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_token_vectors_are_those_of_transformers(
    tiny_backbone: Path, tiny_bundle: Path, tmp_path: Path, engine: str
) -> None:
    if engine == "openvino":
        pytest.importorskip("openvino")
    for client in served(ENGINES[engine](tiny_bundle), tmp_path):
        vectors = client.post("/embed_all", json={"inputs": TEXTS}).json()
        for ours, theirs in zip(vectors, oracle(tiny_backbone, TEXTS, 64), strict=True):
            if engine == "onnxruntime":
                np.testing.assert_allclose(ours, theirs, atol=1e-5)
            cosines = np.vecdot(ours, theirs) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
            assert cosines.min() >= 0.999, "in bfloat16, too"


@pytest.mark.slow
def test_token_vectors_of_minilm_are_those_of_transformers(tmp_path: Path) -> None:
    made = assembly.assemble("minilm", tmp_path / "minilm", name="minilm")
    for client in served(ENGINES["onnxruntime"](made.folder), tmp_path):
        vectors = client.post("/embed_all", json={"inputs": TEXTS}).json()
        for ours, theirs in zip(vectors, oracle(sources.minilm(), TEXTS, 256), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_a_bundle_of_before_says_what_to_do(tiny_bundle: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(tiny_bundle, tmp_path / "old"))
    graph = onnx.load(old / bundle.ONNX)
    del graph.graph.output[2]
    (old / bundle.ONNX).write_bytes(graph.SerializeToString())
    facts = vars(bundle.read_manifest(old / "manifest.json"))
    bundle.write_manifest(old, **{key: one for key, one in facts.items() if key not in ("files", "fingerprint")})
    for client in served(ENGINES["onnxruntime"](old), tmp_path):
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200
        for path, body in (
            ("/embed_all", {"inputs": "a"}),
            ("/rerank", {"query": "a", "texts": ["a"], "method": "late_interaction"}),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 422
            assert "was exported without token vectors: export it again" in answer.json()["error"]
