from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import ollama
import pytest

from tests.clients.conftest import TEXTS, Server

Same = Callable[..., bool]


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def client(server: Server) -> ollama.Client:
    return ollama.Client(server.address, headers=headers(server.key))


def test_embed(client: ollama.Client, server: Server, same: Same) -> None:
    for name in (server.model, f"{server.model}:latest"):
        answer = client.embed(name, TEXTS, truncate=True, options={"temperature": 0}, keep_alive="5m")
        assert same(answer.embeddings)
    assert answer.model == name
    assert min(answer.total_duration or 0, answer.prompt_eval_count or 0) > len(TEXTS)
    assert same(client.embed(server.model, TEXTS[0]).embeddings, TEXTS[:1])
    assert same([client.embeddings(server.model, TEXTS[0]).embedding], TEXTS[:1])


def test_fewer_dimensions(client: ollama.Client, server: Server) -> None:
    (cut,) = client.embed(server.model, TEXTS[0], dimensions=8).embeddings
    whole = server.embed(TEXTS[:1])[0, :8]
    assert cut == pytest.approx(whole / (whole @ whole) ** 0.5, abs=1e-6)


def test_async(server: Server, same: Same) -> None:
    async def main() -> None:
        async with ollama.AsyncClient(server.address, headers=headers(server.key)) as client:
            answers = await asyncio.gather(*(client.embed(server.model, text) for text in TEXTS))
        assert same([answer.embeddings[0] for answer in answers])

    asyncio.run(main())


def test_list_and_show(client: ollama.Client, server: Server) -> None:
    (listed,) = client.list().models
    shown = client.show(server.model)
    assert listed.model == f"{server.model}:latest" and listed.size and listed.size > 1_000_000
    assert (listed.details, listed.modified_at) == (shown.details, shown.modified_at)
    assert shown.capabilities == ["embedding"]
    facts: Any = shown.modelinfo
    assert facts[f"{facts['general.architecture']}.embedding_length"] == server.embed(TEXTS[:1]).shape[1]


def test_a_request_without_texts_loads_the_model(client: ollama.Client, server: Server) -> None:
    assert client.embed(server.model).embeddings == []


@pytest.mark.parametrize(
    ("status", "says", "asked"),
    [
        (404, "there is no model 'no-such-model'", {"model": "no-such-model"}),
        (413, "input.0", {"input": "word " * 5000, "truncate": False}),
        (422, "dimensions", {"dimensions": 1_000_000}),
        (422, "options.num_ctx", {"options": {"num_ctx": 8}}),
    ],
)
def test_refusals(client: ollama.Client, server: Server, status: int, says: str, asked: dict[str, Any]) -> None:
    with pytest.raises(ollama.ResponseError, match=says) as caught:
        client.embed(**{"model": server.model, "input": "a"} | asked)
    assert caught.value.status_code == status


@pytest.mark.parametrize(("key", "status", "says"), [("wrong", 401, "needs a key"), ("spent_key", 429, "used up")])
def test_keys(server: Server, key: str, status: int, says: str) -> None:
    refused = ollama.Client(server.address, headers=headers(getattr(server, key, key)))
    with pytest.raises(ollama.ResponseError, match=says) as caught:
        refused.embed(server.model, "a")
    assert caught.value.status_code == status
