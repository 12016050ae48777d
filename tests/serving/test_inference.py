"""Tests of valid inference requests."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from models.runtimes.base import Floats
from serving.inference.fake_engine import DIM
from serving.service import Health


def vectors(client: TestClient, inputs: Any, **options: Any) -> Floats:
    answer = client.post("/embed", json={"inputs": inputs, **options})
    assert answer.status_code == 200, answer.text
    return np.array(answer.json(), dtype=np.float32)


def unbase64(text: str) -> Floats:
    return np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float32)


@pytest.mark.parametrize("path", ["/embed", "/"])
def test_one_text_gives_a_list_of_lists(client: TestClient, path: str) -> None:
    rows = client.post(path, json={"inputs": "a text"}).json()
    assert np.shape(rows) == (1, DIM)
    assert np.linalg.norm(rows[0]) == pytest.approx(1, abs=1e-6)


def test_order_is_kept_in_a_large_request(client: TestClient) -> None:
    texts = [" ".join(f"w{i % 97}" for _ in range(1 + i % 50)) + f" t{i}" for i in range(2048)]
    together = vectors(client, texts)
    for i in (0, 1, 700, 2047):
        assert np.allclose(together[i], vectors(client, texts[i])[0], atol=1e-6)


def test_null_is_absent_unknown_is_ignored_case_does_not_matter(client: TestClient) -> None:
    null = {"truncate": None, "prompt_name": None, "normalize": None, "dimensions": None}
    odd = {"truncation_direction": "LEFT", "encoding_format": "Float", "whatever": [1]} | null
    assert np.array_equal(vectors(client, "a b", **odd), vectors(client, ["a b"]))
    openai = client.post("/v1/embeddings", json={"input": "a b", "encoding_format": None, "user": "u", "model": "any"})
    assert np.allclose(openai.json()["data"][0]["embedding"], vectors(client, "a b")[0])


def test_normalize_and_dimensions(client: TestClient) -> None:
    pooled = vectors(client, "one two three", normalize=False)[0]
    unit = vectors(client, "one two three")[0]
    assert np.linalg.norm(pooled) > 2
    assert np.allclose(pooled / np.linalg.norm(pooled), unit, atol=1e-6)
    cut = vectors(client, "one two three", dimensions=8)[0]
    assert np.allclose(cut, unit[:8] / np.linalg.norm(unit[:8]), atol=1e-6)
    assert np.allclose(vectors(client, "one two three", dimensions=8, normalize=False)[0], pooled[:8], atol=1e-5)
    assert np.array_equal(vectors(client, "one two three", dimensions=DIM)[0], unit)


def test_truncation_is_visible_and_has_a_side(client: TestClient) -> None:
    long = "left " * 126 + "right " * 126
    answer = client.post("/embed", json={"inputs": [long, "short"]})
    assert answer.headers["x-truncated-inputs"] == "1"
    assert np.allclose(answer.json()[0], vectors(client, "left " * 126)[0], atol=1e-6)
    assert np.allclose(vectors(client, long, truncation_direction="left"), vectors(client, "right " * 126), atol=1e-6)
    usage = client.post("/v1/embeddings", json={"input": [long, "short"]}).json()["usage"]
    assert usage == {"prompt_tokens": 131, "total_tokens": 131, "truncated": 1}


def test_prompt(client: TestClient) -> None:
    assert np.array_equal(vectors(client, "a", prompt_name="query"), vectors(client, "query: a"))


def test_base64_is_little_endian_float32(client: TestClient) -> None:
    expected = vectors(client, ["a", "b"])
    native = client.post("/embed", json={"inputs": ["a", "b"], "encoding_format": "base64"}).json()
    openai = client.post("/v1/embeddings", json={"input": ["a", "b"], "encoding_format": "base64"}).json()
    for i in range(2):
        assert np.array_equal(unbase64(native[i]), expected[i])
        assert np.array_equal(unbase64(openai["data"][i]["embedding"]), expected[i])


@pytest.mark.parametrize(
    ("path", "own", "other"),
    [("/embed", "inputs", "input"), ("/", "inputs", "input"), ("/v1/embeddings", "input", "inputs")],
)
def test_texts_have_either_name(client: TestClient, path: str, own: str, other: str) -> None:
    asked = client.post(path, json={own: ["a", "b"]}).json()
    for body in ({other: ["a", "b"]}, {own: None, other: ["a", "b"]}, {own: ["a", "b"], other: "c"}):
        assert client.post(path, json=body).json() == asked
    missing = client.post(path, json={"texts": ["a"]})
    assert missing.status_code == 422 and f"{own}: " in missing.text


@pytest.mark.parametrize(("path", "field"), [("/embed", "inputs"), ("/", "inputs"), ("/v1/embeddings", "input")])
def test_raw_bytes_for_those_who_ask(client: TestClient, path: str, field: str) -> None:
    long = "left " * 200
    headers = {"accept": "Application/Octet-Stream, */*;q=0.1"}
    answer = client.post(path, json={field: ["a", "b c", long], "dimensions": 8}, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/octet-stream")
    assert answer.headers["x-embedding-shape"] == "3,8"
    assert (answer.headers["x-truncated-inputs"], answer.headers["x-compute-tokens"]) == ("1", "135")
    rows = np.frombuffer(answer.content, dtype="<f4").reshape(3, 8)
    assert np.array_equal(rows, vectors(client, ["a", "b c", long], dimensions=8))


@pytest.mark.parametrize(
    "accept",
    [
        "*/*",
        "text/html",
        "application/*",
        "application/json, application/octet-stream",
        "application/json, application/octet-stream;q=0.9",
        "application/octet-stream;q=0",
        "application/octet-streams",
    ],
)
def test_whoever_does_not_prefer_raw_bytes_gets_json(client: TestClient, accept: str) -> None:
    answer = client.post("/embed", json={"inputs": "a"}, headers={"accept": accept})
    assert np.shape(answer.json()) == (1, DIM)
    assert "x-embedding-shape" not in answer.headers


def test_errors_are_json_for_those_who_ask_for_raw_bytes(client: TestClient) -> None:
    answer = client.post("/embed", json={"inputs": []}, headers={"accept": "application/octet-stream"})
    assert (answer.status_code, answer.json()["error_type"]) == (400, "Empty")


def test_openai_shape(client: TestClient) -> None:
    body = client.post("/v1/embeddings", json={"input": ["a", "b c"], "model": "x"}).json()
    assert (body["object"], body["model"]) == ("list", "fake")
    assert [(one["object"], one["index"], len(one["embedding"])) for one in body["data"]] == [
        ("embedding", 0, DIM),
        ("embedding", 1, DIM),
    ]
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7, "truncated": 0}


def test_token_ids_are_embedded_as_they_are(client: TestClient) -> None:
    one = client.post("/v1/embeddings", json={"input": [0, 7, 1]}).json()["data"]
    two = client.post("/embeddings", json={"input": [[0, 7, 1], [0, 8, 1]]}).json()["data"]
    assert len(one) == 1 and len(two) == 2
    assert one[0]["embedding"] == two[0]["embedding"] != two[1]["embedding"]


@pytest.mark.parametrize("path", ["/similarity", "/"])
def test_similarity(client: TestClient, path: str) -> None:
    texts = ["a b c", "a b d", "x y z"]
    unit = vectors(client, texts)
    one = client.post(path, json={"inputs": {"source_sentence": texts[0], "sentences": texts}, "parameters": {}})
    many = client.post(path, json={"inputs": {"sentences_a": texts[:2], "sentences_b": texts}})
    assert np.allclose(one.json(), unit[0] @ unit.T, atol=1e-6)
    assert np.allclose(many.json(), unit[:2] @ unit.T, atol=1e-6)
    assert max(one.json()) <= 1


def test_models_and_info(client: TestClient) -> None:
    for prefix in ("", "/v1"):
        listed = client.get(f"{prefix}/models").json()
        assert [model["id"] for model in listed["data"]] == ["fake"]
        assert client.get(f"{prefix}/models/fake").json() == listed["data"][0]
    info = client.get("/info").json()
    known = {"model_id": "fake", "model_dtype": "float32", "max_input_length": 128, "max_client_batch_size": 2048}
    ours = {"fingerprint": "fake-1", "engine": "fake", "precision": "fp32", "dim": DIM, "state": "ready"}
    assert info.items() >= (known | ours).items()


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz", "/ping"])
def test_health(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/", "/health", "/livez", "/readyz", "/ping", "/info"])
def test_head(client: TestClient, path: str) -> None:
    assert client.head(path).status_code == 200


def test_not_ready_says_when_to_come_back(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.app_state["service"], "health", Health("loading", "starting"))
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after-ms"]) == 1000 * int(answer.headers["retry-after"])


def test_metrics(client: TestClient) -> None:
    before = client.get("/metrics").text
    client.post("/embed", json={"inputs": ["a", "b"]})
    client.post("/embed", json={"inputs": []})
    after = client.get("/metrics")
    assert after.headers["content-type"].startswith("text/plain")

    def value(text: str, name: str) -> float:
        return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(name)), 0.0)

    for name, more in [
        ('te_request_count{method="batch"}', 2),
        ('te_request_success{method="batch"}', 1),
        ('te_request_failure{err="validation"}', 1),
        ("isosphere_useful_tokens_total", 6),
    ]:
        assert value(after.text, name) - value(before, name) == more, name
    assert value(after.text, "isosphere_ready") == 1
    assert value(after.text, "te_queue_size") == 0


def test_request_ids(client: TestClient) -> None:
    assert client.get("/livez", headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"
    assert len(client.get("/livez", headers={"x-request-id": "not mine"}).headers["x-request-id"]) == 32
    assert client.get("/livez").headers["x-request-id"] != client.get("/livez").headers["x-request-id"]
