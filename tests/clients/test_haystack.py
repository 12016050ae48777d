from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import HuggingFaceAPITextEmbedder
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from huggingface_hub.errors import HfHubHTTPError

from tests.clients.conftest import QUERY, TEXTS, Server

Same = Callable[..., bool]


def embedder(server: Server, key: str) -> Any:
    return HuggingFaceAPITextEmbedder(
        api_type="text_embeddings_inference", api_params={"url": server.address}, token=Secret.from_token(key)
    )


def test_embedder(server: Server, same: Same) -> None:
    assert same([embedder(server, server.key).run(text)["embedding"] for text in TEXTS])
    assert same([asyncio.run(embedder(server, server.key).run_async(TEXTS[0]))["embedding"]], TEXTS[:1])


def test_ranker(server: Server) -> None:
    ranker = HuggingFaceTEIRanker(url=server.address, token=Secret.from_token(server.key), raw_scores=True, top_k=2)
    best = ranker.run(QUERY, [Document(content=text) for text in TEXTS])["documents"]
    assert [one.content for one in best] == server.ranking()[:2]
    assert best[0].score == pytest.approx(server.cosines().max(), abs=1e-5)


def test_keys(server: Server) -> None:
    for key, says in (("wrong", "needs a key"), (server.spent_key, "used up")):
        with pytest.raises(HfHubHTTPError, match=says):
            embedder(server, key).run("a")
        ranker = HuggingFaceTEIRanker(url=server.address, token=Secret.from_token(key), max_retries=1)
        with pytest.raises(RuntimeError, match="HuggingFaceTEIRanker API call failed"):
            ranker.run(QUERY, [Document(content="a")])
