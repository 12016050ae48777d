"""Tests of Ollama's routes: vectors equal /embed's, models have names and tags, and errors have Ollama's form."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.inference.fake_engine import DIM
from tests.serving.conftest import LOCAL
from tests.serving.shelf import Shelf

LONG = "word " * 200
TEXTS = ["a b", "c"]


def post(client: TestClient, path: str, **body: Any) -> Any:
    answer = client.post(path, json={"model": "fake"} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_embed_gives_the_vectors_of_the_server_with_times_and_tokens(client: TestClient) -> None:
    answer = post(client, "/api/embed", input=TEXTS)
    assert answer["embeddings"] == client.post("/embed", json={"inputs": TEXTS}).json()
    assert (answer["model"], answer["prompt_eval_count"], answer["load_duration"]) == ("fake", 7, 0)
    assert answer["total_duration"] > 0
    assert post(client, "/api/embed", input="a b")["embeddings"] == answer["embeddings"][:1]
    assert post(client, "/api/embeddings", prompt="a b") == {"embedding": answer["embeddings"][0]}


def test_fewer_dimensions(client: TestClient) -> None:
    expected = client.post("/embed", json={"inputs": TEXTS, "dimensions": 8}).json()
    assert post(client, "/api/embed", input=TEXTS, dimensions=8)["embeddings"] == expected


@pytest.mark.parametrize("none", [{}, {"input": ""}, {"input": []}, {"input": None}])
def test_without_texts_a_request_shows_that_the_model_exists(client: TestClient, none: dict[str, Any]) -> None:
    """Send such a request, as Ollama's clients do to load a model."""
    assert post(client, "/api/embed", **none)["embeddings"] == []
    assert post(client, "/api/embeddings") == {"embedding": []}
    assert client.post("/api/embed", json=none | {"model": "other"}).status_code == 404


def test_an_empty_text_among_others_is_embedded(client: TestClient) -> None:
    assert len(post(client, "/api/embed", input=["", "a"])["embeddings"]) == 2


@pytest.mark.parametrize("ignored", [{"keep_alive": "5m"}, {"keep_alive": -1}, {"options": {"temperature": 0.5}}])
def test_options_of_generation_and_memory_change_nothing(client: TestClient, ignored: dict[str, Any]) -> None:
    plain = post(client, "/api/embed", input=TEXTS)["embeddings"]
    assert post(client, "/api/embed", input=TEXTS, **ignored)["embeddings"] == plain


def test_tags_show_and_version(client: TestClient) -> None:
    (model,) = client.get("/api/tags").json()["models"]
    info = client.get("/info").json()
    assert (model["name"], model["model"], model["digest"]) == ("fake:latest", "fake:latest", info["model_sha"])
    assert (model["details"]["format"], model["details"]["quantization_level"]) == ("onnx", "F32")
    shown = post(client, "/api/show")
    assert post(client, "/api/show", model=None, name="fake:latest") == shown
    assert (shown["capabilities"], shown["details"]) == (["embedding"], model["details"])
    facts, family = shown["model_info"], shown["model_info"]["general.architecture"]
    assert (facts[f"{family}.embedding_length"], facts[f"{family}.context_length"]) == (DIM, info["max_input_length"])
    assert client.get("/api/version").json()["version"].count(".") == 2


def test_every_model_is_listed_and_asked_by_its_name_with_or_without_tag(pair: TestClient) -> None:
    assert [one["name"] for one in pair.get("/api/tags").json()["models"]] == ["fake:latest", "turned:latest"]
    for name, fingerprint in (("fake", "fake-1"), ("fake:latest", "fake-1"), ("turned:latest", "fake-2")):
        for path, text in (("/api/embed", {"input": "a"}), ("/api/embeddings", {"prompt": "a"})):
            answer = pair.post(path, json={"model": name} | text)
            assert answer.headers["x-model-fingerprint"] == fingerprint, name
    assert post(pair, "/api/embed", model="turned:latest", input="a")["model"] == "turned:latest"


def test_a_tag_in_the_name_of_a_bundle_is_its_name(shelf: Shelf) -> None:
    shelf.holds["tagged"] = shelf.named("fake:latest", "fake-3")
    with TestClient(create_app(shelf.service("tagged")), client=LOCAL) as client:
        assert client.post("/api/show", json={"model": "fake:latest"}).status_code == 200


REFUSED: list[tuple[int, str, str, Any]] = [
    (404, "model: there is no model 'other'", "/api/embed", {"model": "other", "input": "a"}),
    (404, "model: there is no model 'fake:7b'", "/api/embed", {"model": "fake:7b", "input": "a"}),
    (404, "model: there is no model 'other'", "/api/embeddings", {"model": "other", "prompt": "a"}),
    (404, "model: there is no model 'other'", "/api/show", {"model": "other"}),
    (422, "model: is required", "/api/embed", {"input": "a"}),
    (422, "model: is required", "/api/show", {}),
    (422, "input: must be a text or a list of texts", "/api/embed", {"model": "fake", "input": 7}),
    (422, "input.1: must be a string", "/api/embed", {"model": "fake", "input": ["a", 7]}),
    (422, "dimensions: must be between 1 and", "/api/embed", {"model": "fake", "input": "a", "dimensions": DIM + 1}),
    (422, "options.num_ctx: must be at least", "/api/embed", {"model": "fake", "options": {"num_ctx": 8}}),
    (413, "input.0: ", "/api/embed", {"model": "fake", "input": LONG, "truncate": False}),
    (413, "input: 2049 texts", "/api/embed", {"model": "fake", "input": ["a"] * 2049}),
    (422, "prompt: not valid Unicode", "/api/embeddings", {"model": "fake", "prompt": "\ud800"}),
    (404, "POST /api/chat: ", "/api/chat", {"model": "fake"}),
]


@pytest.mark.parametrize(("status", "says", "path", "body"), REFUSED)
def test_refusals_have_ollamas_form(client: TestClient, status: int, says: str, path: str, body: Any) -> None:
    answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json().keys()) == (status, {"error"})
    assert answer.json()["error"].startswith(says)


def test_a_models_size_and_time_are_those_of_its_files(shelf: Shelf) -> None:
    shelf.holds["files"] = lambda: shelf.bundles.turned(files={"config.json": "sha256", "gone.json": "sha256"})
    (shelf.folder / "files").mkdir()
    (shelf.folder / "files" / "config.json").write_bytes(b"12345")
    os.utime(shelf.folder / "files" / "config.json", (0, 86_400))
    with TestClient(create_app(shelf.service("files")), client=LOCAL) as client:
        (model,) = client.get("/api/tags").json()["models"]
    assert (model["size"], model["modified_at"]) == (5, "1970-01-02T00:00:00+00:00")
