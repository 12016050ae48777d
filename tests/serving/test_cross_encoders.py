"""Tests of a cross-encoder beside an encoder: /rerank, /predict, search, and routes that it can't serve."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from models.bundle import bundle
from models.bundle.bundle import BundleError
from models.runtimes import graph
from serving.app import create_app
from serving.commands.starting import local_corpora
from serving.corpora.stores import STORES
from serving.inference.engine import EngineOptions, Model
from serving.inference.engines import ENGINES
from serving.service import Service
from serving.settings import Settings

TEXTS = ["a red bird can sing", "the old man", "the sea " * 50, ""]
QUERY = "the bird"


def service_of(folder: Path, models: list[Model], **options: Any) -> Service:
    names = ":".join(str(folder / one.manifest.name) for one in models)
    settings = Settings(data=folder, bundle=names, no_demo=True, engine="fake", device="cpu", **options)
    return Service(settings, models[0], local_corpora(settings, STORES["memory"](folder)), others=models[1:])


@pytest.fixture(scope="module")
def beside(
    cross_bundle: Path, tmp_path_factory: pytest.TempPathFactory, wait_until_ready: Callable[[TestClient], None]
) -> Iterator[TestClient]:
    """Return a server of the fake encoder and of `cross`, which ignores the default prompt."""
    folder = tmp_path_factory.mktemp("beside")
    models = [ENGINES["fake"](folder), ENGINES["auto"](cross_bundle)]
    with TestClient(create_app(service_of(folder, models, default_prompt_name="query"))) as client:
        wait_until_ready(client)
        yield client


@pytest.fixture(scope="module")
def logits(cross_bundle: Path) -> Any:
    return graph.scores(bundle.load(cross_bundle), [(QUERY, text) for text in TEXTS])


def sigmoid(scores: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(scores, dtype=float)))


@pytest.mark.parametrize("named", [{"model": "cross"}, {"method": "cross_encoder"}])
def test_rerank(beside: TestClient, logits: Any, named: dict[str, str]) -> None:
    body = {"query": QUERY, "texts": TEXTS, **named}
    answer = beside.post("/rerank", json=body)
    ranks = answer.json()
    assert [rank["index"] for rank in ranks] == np.argsort(-logits).tolist()
    np.testing.assert_allclose([rank["score"] for rank in ranks], sigmoid(np.sort(logits)[::-1]), atol=1e-5)
    raw = beside.post("/rerank", json=body | {"raw_scores": True}).json()
    np.testing.assert_allclose([rank["score"] for rank in raw], np.sort(logits)[::-1], atol=1e-4)
    assert answer.headers["x-truncated-inputs"] == "1"
    assert answer.headers["x-model-fingerprint"] == beside.get("/info", params={"model": "cross"}).json()["fingerprint"]


def test_rerank_without_a_model_is_the_cosine_of_the_encoder(beside: TestClient) -> None:
    body = {"query": QUERY, "texts": TEXTS[:2]}
    assert beside.post("/rerank", json=body).json() == beside.post("/rerank", json=body | {"method": "cosine"}).json()
    assert beside.post("/rerank", json=body).headers["x-model-fingerprint"] == "fake-1"


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_coheres_route(beside: TestClient, logits: Any, path: str) -> None:
    body = {"query": QUERY, "documents": TEXTS, "model": "cross", "top_n": 2}
    results = beside.post(path, json=body).json()["results"]
    assert [result["index"] for result in results] == np.argsort(-logits).tolist()[:2]
    np.testing.assert_allclose(
        [one["relevance_score"] for one in results], sigmoid(np.sort(logits)[::-1][:2]), atol=1e-5
    )


def test_predict(beside: TestClient, logits: Any) -> None:
    batch = [[QUERY, text] for text in TEXTS]
    answer = beside.post("/predict", json={"inputs": batch}).json()
    assert [[one["label"] for one in each] for each in answer] == [["LABEL_0"]] * 4
    np.testing.assert_allclose([each[0]["score"] for each in answer], sigmoid(logits), atol=1e-5)
    one = beside.post("/predict", json={"inputs": batch[0], "model": "cross", "raw_scores": True}).json()
    assert one == [{"score": pytest.approx(logits[0], abs=1e-4), "label": "LABEL_0"}]
    left, right = (
        beside.post("/predict", json={"inputs": ["a", "sea " * 60 + "man " * 60], "truncation_direction": side}).json()
        for side in ("left", "right")
    )
    assert left != right


def test_a_search_reranks_by_the_cross_encoder(beside: TestClient, logits: Any) -> None:
    beside.put("/corpora/words")
    documents = [{"id": str(i), "text": text} for i, text in enumerate(TEXTS)]
    beside.post("/corpora/words/documents", json={"documents": documents})
    for rerank in ({"method": "cross_encoder"}, {"method": "cross_encoder", "model": "cross", "candidates": 10}):
        hits = beside.post("/corpora/words/search", json={"query": QUERY, "rerank": rerank}).json()["hits"]
        assert [int(hit["id"]) for hit in hits] == np.argsort(-logits).tolist()
        np.testing.assert_allclose([hit["score"] for hit in hits], sigmoid(np.sort(logits)[::-1]), atol=1e-5)
    for model, status in (("fake", 422), ("other", 404)):
        body = {"query": QUERY, "rerank": {"method": "cross_encoder", "model": model}}
        assert beside.post("/corpora/words/search", json=body).status_code == status


NO_VECTORS = "model: 'cross' is a cross-encoder, which can't embed texts: use it with /rerank or /predict"
NO_PAIRS = "model: 'fake' is an encoder, which can't score pairs: use a cross-encoder"
PAIR = {"query": "a", "texts": ["b"]}


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/embed", {"inputs": "a", "model": "cross"}, 422, NO_VECTORS),
        ("/embed_all", {"inputs": "a", "model": "cross"}, 422, NO_VECTORS),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": "b"}, "model": "cross"}, 422, NO_VECTORS),
        ("/rerank", PAIR | {"model": "cross", "method": "cosine"}, 422, NO_VECTORS),
        ("/rerank", PAIR | {"model": "cross", "method": "late_interaction"}, 422, NO_VECTORS),
        ("/rerank", PAIR | {"model": "fake", "method": "cross_encoder"}, 422, NO_PAIRS),
        ("/rerank", PAIR | {"model": "cross", "prompt": "q"}, 422, "prompt: a cross-encoder does not support prompts"),
        ("/rerank", {"query": "a", "texts": ["b", "a " * 90], "model": "cross", "truncate": False}, 413, "texts.1: "),
        ("/predict", {"inputs": ["a", "b"], "model": "fake"}, 422, NO_PAIRS),
        ("/predict", {"inputs": ["a", "b"], "model": "other"}, 404, "there is no model 'other'"),
        ("/predict", {"inputs": "a"}, 422, "inputs: "),
        ("/predict", {"inputs": ["a"]}, 422, "inputs: "),
        ("/predict", {"inputs": [["a", "b"], ["a"]]}, 422, "inputs.1: "),
        ("/predict", {"inputs": []}, 422, "inputs: "),
        ("/predict", {"inputs": [["a", "b"]] * 2049}, 413, "inputs: 2049 texts"),
        ("/predict", {"inputs": [["a", "b"], ["a", "\ud800"]]}, 422, "inputs.1"),
    ],
)
def test_native_routes_refuse(beside: TestClient, path: str, body: Any, status: int, says: str) -> None:
    answer = beside.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert (answer.status_code, set(answer.json())) == (status, {"error", "error_type"}), answer.text
    assert says in answer.json()["error"]


def test_other_families_refuse_in_their_own_form(beside: TestClient) -> None:
    openai = beside.post("/v1/embeddings", json={"input": "a", "model": "cross"})
    assert (openai.status_code, openai.json()["error"]["param"]) == (422, "model")
    cohere = beside.post("/v2/embed", json={"texts": ["a"], "model": "cross"})
    assert (cohere.status_code, cohere.json()["message"]) == (422, NO_VECTORS)
    assert beside.put("/corpora/other", json={"model": "cross"}).status_code == 422
    assert beside.get("/corpora/other").status_code == 404
    beside.put("/corpora/third")
    assert beside.post("/corpora/third/reembed", json={"model": "cross"}).status_code == 422


def test_what_the_server_says_about_it(beside: TestClient) -> None:
    info = beside.get("/info", params={"model": "cross"}).json()
    assert info["model_type"] == {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
    assert (info["engine"], info["precision"], info["dim"]) == ("onnxruntime", "fp32", 1)
    assert beside.get("/info").json()["model_type"] == {"embedding": {"pooling": "sum"}}
    assert [one["id"] for one in beside.get("/v1/models").json()["data"]] == ["fake", "cross"]
    (pieces,) = beside.post("/tokenize", json={"inputs": "the sea", "model": "cross"}).json()
    assert [piece["text"] for piece in pieces] == ["[CLS]", "the", "sea", "[SEP]"]


def test_a_server_without_a_cross_encoder_says_how_to_get_one(client: TestClient) -> None:
    for path, body in (("/predict", {"inputs": ["a", "b"]}), ("/rerank", PAIR | {"method": "cross_encoder"})):
        answer = client.post(path, json=body)
        assert answer.status_code == 404
        assert "this server has no cross-encoder: export one by `isosphere export`" in answer.json()["error"]


def test_it_is_never_the_default(cross_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(
        BundleError, match="cross: the first model is the default model, which can't be a cross-encoder"
    ):
        service_of(tmp_path, [ENGINES["auto"](cross_bundle)])


def test_a_bundle_with_other_golden_scores_does_not_serve(cross_bundle: Path, tmp_path: Path, run: Any) -> None:
    folder = Path(shutil.copytree(cross_bundle, tmp_path / "cross"))
    facts = dict(vars(bundle.load(folder).manifest))
    facts["golden"] = [bundle.Golden(text=one.text, text_pair=one.text_pair, vector=[9.0]) for one in facts["golden"]]
    bundle.write_manifest(folder, **{key: one for key, one in facts.items() if key not in ("files", "fingerprint")})
    service = service_of(tmp_path, [ENGINES["fake"](tmp_path), ENGINES["auto"](folder)])

    async def work() -> None:
        await service.loaded.wait()
        assert service.health.state == "failed"
        assert "the engine's scores differ from the golden scores" in service.health.reason

    run(service, work)


def test_pairs_do_not_depend_on_their_batch(cross_bundle: Path) -> None:
    loaded = ENGINES["auto"](cross_bundle).load(EngineOptions(device="cpu"))
    tokens = loaded.tokenize_pairs([(QUERY, text) for text in TEXTS], "right")
    together = loaded.embed(tokens).vectors
    alone = np.concatenate([loaded.embed([one], alone=True).vectors for one in tokens])
    np.testing.assert_allclose(together, alone, atol=1e-5)
