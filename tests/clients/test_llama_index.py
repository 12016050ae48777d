from __future__ import annotations

import asyncio
from collections.abc import Callable

import ollama
import openai
import pytest
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

from tests.clients.conftest import QUERY, TEXTS, Server

Same = Callable[..., bool]


def test_openai_like(server: Server, same: Same) -> None:
    embedding = OpenAILikeEmbedding(model_name="any", api_base=f"{server.address}/v1", api_key=server.key)
    assert same([embedding.get_query_embedding(TEXTS[0])], TEXTS[:1])
    assert same(asyncio.run(embedding.aget_text_embedding_batch(TEXTS)))
    for key, raised in (("wrong", openai.AuthenticationError), (server.spent_key, openai.RateLimitError)):
        refused = OpenAILikeEmbedding(model_name="any", api_base=f"{server.address}/v1", api_key=key, max_retries=1)
        with pytest.raises(raised):
            refused.get_text_embedding("a")


def test_tei(server: Server, same: Same) -> None:
    embedding = TextEmbeddingsInference(model_name="any", base_url=server.address, auth_token=server.key)
    assert same([embedding.get_query_embedding(TEXTS[0])], TEXTS[:1])
    assert same(asyncio.run(embedding.aget_text_embedding_batch(TEXTS)))
    texts = [f"text {i}" for i in range(50)]
    large = TextEmbeddingsInference("any", server.address, embed_batch_size=50, auth_token=server.key)
    assert same(large.get_text_embedding_batch(texts), texts)


def test_an_error_is_no_vector(server: Server) -> None:
    """Check that an error has no first element, because the client reads answers without looking at the status."""
    refused = TextEmbeddingsInference(model_name="any", base_url=server.address, auth_token="wrong")
    with pytest.raises(KeyError):
        refused.get_text_embedding("a")


def test_rerank(server: Server) -> None:
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
    reranker = TextEmbeddingInference(base_url=server.address, auth_token=server.key, top_n=2)
    best = reranker.postprocess_nodes(nodes, query_str=QUERY)
    assert [one.text for one in best] == server.ranking()[:2]
    cosines = dict(zip(TEXTS, server.cosines(), strict=True))
    assert {one.text: one.score for one in nodes} == pytest.approx(cosines, abs=1e-5)


def test_ollama(server: Server, same: Same) -> None:
    def client(model: str, key: str = server.key) -> OllamaEmbedding:
        options = {"headers": {"authorization": f"Bearer {key}"}}
        return OllamaEmbedding(model_name=model, base_url=server.address, client_kwargs=options)

    assert same([client(server.model).get_query_embedding(TEXTS[0])], TEXTS[:1])
    assert same(client(server.model).get_text_embedding_batch(TEXTS))
    assert same(asyncio.run(client(f"{server.model}:latest").aget_text_embedding_batch(TEXTS)))
    for refused, says in ((client("other"), "no model 'other'"), (client(server.model, "wrong"), "needs a key")):
        with pytest.raises(ollama.ResponseError, match=says):
            refused.get_text_embedding("a")
