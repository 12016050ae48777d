"""Tests of the routes of Cohere, and of Jina, which are similar."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from serving.inference.fake_engine import DIM

TEXTS = ["a b c", "x y"]


def test_embed_has_the_vectors_by_type(client: TestClient) -> None:
    kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    sent = {"texts": TEXTS, "model": "any", "input_type": "search_document", "embedding_types": kinds}
    body = client.post("/v2/embed", json=sent).json()
    assert set(body) == {"id", "embeddings", "texts", "meta", "response_type"}
    assert (body["texts"], body["response_type"]) == (TEXTS, "embeddings_by_type")
    assert body["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 9}}
    floats = client.post("/embed", json={"inputs": TEXTS}).json()
    assert list(body["embeddings"]) == kinds
    assert body["embeddings"]["float"] == floats
    assert np.shape(body["embeddings"]["int8"]) == np.shape(body["embeddings"]["uint8"]) == (2, DIM)
    assert np.shape(body["embeddings"]["binary"]) == np.shape(body["embeddings"]["ubinary"]) == (2, DIM // 8)
    unpacked = np.frombuffer(base64.b64decode(body["embeddings"]["base64"][1]), dtype="<f4")
    assert np.array_equal(unpacked, np.array(floats[1], dtype=np.float32))


@pytest.mark.parametrize("types", [None, [], "FLOAT", ["Float", "float"]])
def test_the_type_is_float_unless_others_are_asked_for(client: TestClient, types: Any) -> None:
    answer = client.post("/v2/embed", json={"texts": "a", "embedding_types": types})
    if types == []:
        assert answer.status_code == 422
        assert "embedding_types" in answer.json()["message"]
        return
    assert list(answer.json()["embeddings"]) == ["float"]


def test_the_input_type_takes_the_bundles_prompt(client: TestClient) -> None:
    def vector(text: str, **options: Any) -> Any:
        return client.post("/v2/embed", json={"texts": [text], **options}).json()["embeddings"]["float"]

    assert vector("a", input_type="search_query") == vector("query: a") != vector("a")
    for without in ("search_document", "Clustering", "classification", None):
        assert vector("a", input_type=without) == vector("a")


def test_truncation_has_a_side_and_is_told(client: TestClient) -> None:
    long = "left " * 126 + "right " * 126
    for truncate, kept in ((None, "left"), ("END", "left"), ("START", "right")):
        answer = client.post("/v2/embed", json={"texts": [long], "truncate": truncate})
        assert answer.json()["embeddings"]["float"] == client.post("/embed", json={"inputs": f"{kept} " * 126}).json()
        assert answer.headers["x-truncated-inputs"] == "1"
        assert answer.json()["meta"]["warnings"] == ["1 texts were truncated"]
    refused = client.post("/v2/embed", json={"texts": ["a", long], "truncate": "NONE"})
    assert refused.status_code == 413
    assert refused.json()["message"].startswith("texts.1: 254 tokens")


def block(text: str) -> dict[str, Any]:
    return {"content": [{"type": "TEXT", "text": text}]}


def test_inputs_are_texts_in_blocks(client: TestClient) -> None:
    given = {"texts": TEXTS, "input_type": "search_query"}
    expected = client.post("/v2/embed", json=given).json()
    answer = client.post("/v2/embed", json={**given, "texts": None, "inputs": [block(text) for text in TEXTS]}).json()
    assert (answer["embeddings"], answer["texts"]) == (expected["embeddings"], TEXTS)


def test_what_would_be_ignored_is_refused(client: TestClient) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    for says, body in [
        ("images: ", {"images": ["data:image/png;base64,AAAA"]}),
        ("inputs.0.content.0.type: ", {"inputs": [{"content": [picture]}]}),
        ("inputs.0.content: ", {"inputs": [{"content": block("a")["content"] * 2}]}),
        ("inputs.0.content: ", {"inputs": [{"content": []}]}),
        ("inputs.0: ", {"inputs": ["a"]}),
        ("either texts or inputs", {"texts": ["a"], "inputs": [block("a")]}),
        ("max_tokens: must be at least 128", {"texts": ["a"], "max_tokens": 127}),
        ("max_tokens: ", {"texts": ["a"], "max_tokens": 0}),
    ]:
        answer = client.post("/v2/embed", json=body)
        assert answer.status_code == 422 and says in answer.json()["message"], answer.text
    assert client.post("/v2/embed", json={"texts": ["a"], "max_tokens": 128, "images": None}).status_code == 200
    too_many = client.post("/v2/embed", json={"inputs": [block("a")] * 2049})
    assert (too_many.status_code, too_many.json()["message"][:6]) == (413, "inputs")
    none = client.post("/v2/embed", json={"inputs": []})
    assert (none.status_code, none.json()["message"][:6]) == (400, "inputs")


def test_output_dimension(client: TestClient) -> None:
    answer = client.post("/v2/embed", json={"texts": TEXTS, "output_dimension": 16})
    floats = np.array(answer.json()["embeddings"]["float"])
    assert floats.shape == (2, 16)
    assert np.allclose(np.linalg.norm(floats, axis=1), 1, atol=1e-6)
    assert answer.json()["meta"]["warnings"] == ["not-matryoshka"]


@pytest.mark.parametrize("version", ["1", "2"])
def test_rerank(client: TestClient, version: str) -> None:
    documents = ["x y z", {"text": "a b c"}, "a b d"]
    sent = {"model": "any", "query": "a b c", "documents": documents, "top_n": 2, "return_documents": True}
    body = client.post(f"/v{version}/rerank", json=sent).json()
    assert set(body) == {"id", "model", "results", "meta", "usage"}
    assert [one["index"] for one in body["results"]] == [1, 2]
    assert [one["document"] for one in body["results"]] == [{"text": "a b c"}, {"text": "a b d"}]
    native = client.post("/rerank", json={"query": "a b c", "texts": ["x y z", "a b c", "a b d"]}).json()
    assert [one["relevance_score"] for one in body["results"]] == pytest.approx([one["score"] for one in native[:2]])
    assert (body["model"], body["meta"]["api_version"]) == ("fake", {"version": version})
    assert body["usage"]["total_tokens"] == body["meta"]["billed_units"]["input_tokens"] > 0


def test_rerank_reads_as_much_of_a_document_as_it_is_told(client: TestClient) -> None:
    def rerank(documents: list[str], **more: Any) -> Any:
        sent = {"query": "a b c", "documents": documents, "return_documents": True, **more}
        return client.post("/v2/rerank", json=sent).json()

    long, whole = "a b c x y z", rerank(["a b", "a b c", "a b c x y z", ""])
    scores = {one["index"]: one["relevance_score"] for one in whole["results"]}
    cut = rerank([long, ""], max_tokens_per_doc=2)
    assert {one["index"]: one["relevance_score"] for one in cut["results"]} == pytest.approx(
        {0: scores[0], 1: scores[3]}, abs=1e-6
    )
    assert {one["document"]["text"] for one in cut["results"]} == {long, ""}
    assert rerank([long, ""])["usage"]["total_tokens"] - cut["usage"]["total_tokens"] == 4
    for unlimited in (None, 6, 4096, 10**9):
        (one,) = rerank([long], max_tokens_per_doc=unlimited)["results"]
        assert one["relevance_score"] == pytest.approx(scores[2], abs=1e-6)
    few = rerank([long], max_tokens_per_doc=3)["results"]
    assert few[0]["relevance_score"] == pytest.approx(scores[1], abs=1e-6)


def test_what_is_cut_of_a_document_is_told(client: TestClient) -> None:
    documents = ["a b c x y z", "a b", "", "a " * 300]
    for most, cut in (
        (2, 2),
        (6, 1),
        (62, 1),
        (63, 1),
        (None, 1),
    ):  # The fake model reads 64 tokens, including two special tokens.
        sent = {"query": "a", "documents": documents, "max_tokens_per_doc": most}
        answer = client.post("/v2/rerank", json=sent)
        assert answer.headers["x-truncated-inputs"] == str(cut)
        assert len(answer.json()["meta"].get("warnings", [])) == 1
    uncut = client.post("/v2/rerank", json={"query": "a", "documents": ["a b"], "max_tokens_per_doc": 2})
    assert uncut.headers["x-truncated-inputs"] == "0" and "warnings" not in uncut.json()["meta"]


def test_rerank_gives_all_and_no_documents_unless_asked(client: TestClient) -> None:
    for top_n in (None, 50):
        body = client.post("/v2/rerank", json={"query": "a", "documents": TEXTS, "top_n": top_n}).json()
        assert [set(one) for one in body["results"]] == [{"index", "relevance_score"}] * 2
    one = client.post("/v1/rerank", json={"query": "a", "documents": "a single one"}).json()
    assert [rank["index"] for rank in one["results"]] == [0]


@pytest.mark.parametrize(
    ("status", "says", "path", "body"),
    [
        (400, "texts: must contain", "/v2/embed", {"texts": []}),
        (422, "texts: give either texts or inputs", "/v2/embed", {}),
        (422, "texts.1: ", "/v2/embed", {"texts": ["a", 1]}),
        (422, "embedding_types.0: ", "/v2/embed", {"texts": ["a"], "embedding_types": ["int4"]}),
        (422, "input_type: ", "/v2/embed", {"texts": ["a"], "input_type": "image"}),
        (422, "truncate: ", "/v2/embed", {"texts": ["a"], "truncate": "MIDDLE"}),
        (422, "output_dimension: must be between 1 and 64", "/v2/embed", {"texts": ["a"], "output_dimension": 65}),
        (413, "texts: 2049 texts", "/v2/embed", {"texts": ["a"] * 2049}),
        (400, "documents: must contain", "/v2/rerank", {"query": "a", "documents": []}),
        (422, "documents.0: ", "/v2/rerank", {"query": "a", "documents": [{"title": "a"}]}),
        (422, "documents.0: ", "/v2/rerank", {"query": "a", "documents": [{"text": 1}]}),
        (422, "top_n: ", "/v2/rerank", {"query": "a", "documents": ["a"], "top_n": 0}),
        (422, "max_tokens_per_doc: ", "/v2/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": 0}),
        (413, "documents: 2049 texts", "/v2/rerank", {"query": "a", "documents": ["a"] * 2049}),
        (404, "/v2/nowhere", "/v2/nowhere", {}),
    ],
)
def test_errors_under_v2_are_a_message(client: TestClient, status: int, says: str, path: str, body: Any) -> None:
    answer = client.post(path, json=body)
    assert (answer.status_code, set(answer.json())) == (status, {"message"}), answer.text
    assert says in answer.json()["message"]
    assert answer.headers["x-request-id"]


def test_as_many_documents_as_the_server_says_beside_their_query(client: TestClient) -> None:
    most = client.get("/info").json()["max_client_batch_size"]
    answer = client.post("/v2/rerank", json={"query": "a", "documents": ["a"] * most})
    assert (answer.status_code, len(answer.json()["results"])) == (200, most)


def test_errors_of_rerank_under_v1_are_openais(client: TestClient) -> None:
    answer = client.post("/v1/rerank", json={"query": "a", "documents": []})
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == ("empty", "documents")
