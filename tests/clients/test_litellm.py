from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import litellm
import pytest

from tests.clients.conftest import QUERY, TEXTS, Server

Same = Callable[..., bool]


def vectors(answer: Any) -> list[Any]:
    return [one["embedding"] for one in answer.data]


def openai_like(server: Server, **options: Any) -> dict[str, Any]:
    return {
        "model": "openai/any",
        "api_base": f"{server.address}/v1",
        "api_key": server.key,
        "max_retries": 0,
    } | options


@pytest.mark.parametrize("options", [{}, {"encoding_format": None}, {"encoding_format": "float"}])
def test_openai(server: Server, same: Same, options: dict[str, Any]) -> None:
    assert same(vectors(litellm.embedding(input=TEXTS, **openai_like(server, **options))))


def test_null_is_absent(server: Server, same: Same) -> None:
    """Send null for an absent `encoding_format`, as versions from 1.80.11 on do. Other servers refuse this."""
    body = dict.fromkeys(("encoding_format", "dimensions", "user"))
    assert same(vectors(litellm.embedding(input=TEXTS, extra_body=body, **openai_like(server))))


def test_async(server: Server, same: Same) -> None:
    assert same(vectors(asyncio.run(litellm.aembedding(input=TEXTS, **openai_like(server)))))


def test_huggingface(server: Server, same: Same, others_asked: list[str]) -> None:
    """Embed by `POST /`. The client asks the hub for the model's price, and continues without an answer."""
    asked = {"model": "huggingface/any", "api_base": server.address, "api_key": server.key}
    asked |= {"input_type": "feature-extraction"}
    assert same(vectors(litellm.embedding(input=TEXTS, **asked)))
    assert set(others_asked) == {"huggingface.co"}
    others_asked.clear()


def test_cohere_rerank(server: Server) -> None:
    asked = {"model": "cohere/any", "api_base": f"{server.address}/v2/rerank", "api_key": server.key}
    results = litellm.rerank(query=QUERY, documents=TEXTS, top_n=2, **asked).results
    assert [TEXTS[one["index"]] for one in results] == server.ranking()[:2]


def test_keys(server: Server) -> None:
    for key, raised, says in (
        ("wrong", litellm.AuthenticationError, "needs a key"),
        (server.spent_key, litellm.RateLimitError, "used up"),
    ):
        with pytest.raises(raised, match=says):
            litellm.embedding(input=["a"], **openai_like(server, api_key=key))


def test_foreign_ids(server: Server) -> None:
    with pytest.raises(litellm.BadRequestError, match="check_embedding_ctx_length=False"):
        litellm.embedding(input=[[2_000_000]], **openai_like(server))
