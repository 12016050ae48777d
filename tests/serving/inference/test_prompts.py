"""Tests of the prompt before a text, which the request, the role or the server's option selects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.service import Service
from serving.settings import SettingsError, read_settings
from tests.conftest import PATIENCE

Serve = Callable[..., Any]
MakeService = Callable[..., Service]


@pytest.fixture
def serve(make_service: MakeService, wait_until_ready: Callable[[TestClient], None]) -> Serve:
    @contextmanager
    def serve(**options: Any) -> Iterator[TestClient]:
        with TestClient(create_app(make_service(store="memory", **options))) as client:
            wait_until_ready(client)
            yield client

    return serve


def vector(client: TestClient, text: str | list[int], **options: Any) -> Any:
    answer = client.post("/embed", json={"inputs": text, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("default", [{"default_prompt": "query: "}, {"default_prompt_name": "query"}])
def test_the_default_stands_before_every_text_that_names_no_prompt(serve: Serve, default: dict[str, str]) -> None:
    with serve() as plain, serve(**default) as prompted:
        expected = vector(plain, "query: a")
        assert vector(prompted, "a") == expected
        assert vector(prompted, "a", prompt="") == vector(plain, "a") != expected
        assert vector(prompted, "a", prompt="say ") == vector(plain, "say a")
        sent = {"inputs": {"source_sentence": "a", "sentences": ["query: a"]}}
        with_prompt = {"inputs": {"source_sentence": "query: a", "sentences": ["query: query: a"]}}
        assert prompted.post("/similarity", json=sent).json() == plain.post("/similarity", json=with_prompt).json()
        pieces = prompted.post("/tokenize", json={"inputs": "a"}).json()
        assert pieces == plain.post("/tokenize", json={"inputs": "query: a"}).json()


def test_a_text_may_be_as_long_whatever_stands_before_it(serve: Serve) -> None:
    bodies: dict[str, Callable[[str], dict[str, Any]]] = {
        "/embed": lambda text: {"inputs": [text]},
        "/rerank": lambda text: {"query": text, "texts": [text]},
        "/tokenize": lambda text: {"inputs": [text]},
    }
    with serve(default_prompt="query: ", max_text_bytes=100) as client:
        for path, body in bodies.items():
            assert client.post(path, json=body("a" * 100)).status_code == 200, path
            refused = client.post(path, json=body("a" * 101))
            assert refused.status_code == 413 and "101 bytes are more than the 100" in refused.json()["error"], path


def test_the_default_is_not_put_before_token_ids(serve: Serve) -> None:
    with serve() as plain, serve(default_prompt="query: ") as prompted:
        assert vector(prompted, [5, 6]) == vector(plain, [5, 6])


def test_corpora_do_not_change_with_the_default(serve: Serve) -> None:
    documents = {"documents": [{"id": "a", "text": "a b c"}]}
    scores = []
    for options in ({}, {"default_prompt": "query: "}):
        with serve(**options) as client:
            client.put("/corpora/c")
            client.post("/corpora/c/documents", json=documents)
            scores.append(client.post("/corpora/c/search", json={"query": "a b"}).json()["hits"][0]["score"])
    assert scores[0] == scores[1] < 1


@pytest.mark.parametrize("default", [{"default_prompt": "say: "}, {"default_prompt_name": "query"}])
def test_a_role_gets_its_own_prompt_or_none_but_never_the_default(serve: Serve, default: dict[str, str]) -> None:
    """Use the fake bundle, which has a prompt for queries and none for documents."""
    ranked = {"query": "a b", "texts": ["a b c", "query: a b"]}
    with serve() as plain, serve(**default) as prompted:
        assert prompted.post("/rerank", json=ranked).json() == plain.post("/rerank", json=ranked).json()
        for role, prompt in (("search_query", "query: "), ("search_document", ""), ("clustering", "")):
            cohere = prompted.post("/v2/embed", json={"texts": ["a"], "input_type": role}).json()
            openai = prompted.post("/v1/embeddings", json={"input": ["a"], "input_type": role}).json()
            assert cohere["embeddings"]["float"] == [openai["data"][0]["embedding"]] == vector(plain, f"{prompt}a")


def test_a_default_that_the_bundle_does_not_have_is_refused_at_the_start(make_service: MakeService) -> None:
    service = make_service(default_prompt_name="passage")

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), service.running():
            await service.loaded.wait()
            assert service.health.state == "failed"
            assert "--default-prompt-name: the bundle has no prompt 'passage'" in service.health.reason

    asyncio.run(main())


def test_there_is_one_default() -> None:
    with pytest.raises(SettingsError, match="--default-prompt or --default-prompt-name, not both"):
        read_settings(["--default-prompt", "a", "--default-prompt-name", "query"])


def test_token_arrays_can_be_refused(serve: Serve) -> None:
    with serve(token_arrays="reject") as client:
        for path, body, field in (
            ("/v1/embeddings", {"input": [[5], [6]]}, "input.0"),
            ("/v1/embeddings", {"input": [5]}, "input.0"),
        ):
            answer = client.post(path, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, "tokenizer", field)
            assert "check_embedding_ctx_length=False" in error["message"]
        native = client.post("/embed", json={"inputs": [5]})
        assert (native.status_code, native.json()["error_type"]) == (400, "Tokenizer")
        assert client.post("/decode", json={"ids": [5]}).json() == ["#5"], "who asks what ids mean sends ids"
        assert client.post("/v1/embeddings", json={"input": "text"}).status_code == 200
