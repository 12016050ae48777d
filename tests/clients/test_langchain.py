from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import ollama
import openai
import pytest
import tiktoken
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_ollama import OllamaEmbeddings
from langchain_openai import AzureOpenAIEmbeddings, OpenAIEmbeddings

from tests.clients.conftest import TEXTS, Server

Same = Callable[..., bool]


def embeddings(server: Server, **options: Any) -> Any:
    options = {"api_key": server.key, "check_embedding_ctx_length": False} | options
    return OpenAIEmbeddings(base_url=f"{server.address}/v1", model="any", max_retries=0, **options)


def test_openai(server: Server, same: Same) -> None:
    client = embeddings(server)
    assert same([client.embed_query(TEXTS[0])], TEXTS[:1])
    assert same(asyncio.run(client.aembed_documents(TEXTS)))


def test_openai_in_chunks(server: Server, same: Same) -> None:
    texts = [f"text {i}" for i in range(30)]
    assert same(embeddings(server).embed_documents(texts, chunk_size=7), texts)


def test_ids_of_another_tokenizer_are_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client tokenise with a small tokenizer instead of downloading one. Its ids begin at 100,000."""
    foreign = tiktoken.Encoding(
        "foreign", pat_str=r".", mergeable_ranks={bytes([i]): 100_000 + i for i in range(256)}, special_tokens={}
    )
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda _: foreign)
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        embeddings(server, check_embedding_ctx_length=True).embed_documents(TEXTS)


def test_openai_keys(server: Server) -> None:
    with pytest.raises(openai.AuthenticationError, match="needs a key"):
        embeddings(server, api_key="wrong").embed_query("a")
    with pytest.raises(openai.RateLimitError, match="used up"):
        embeddings(server, api_key=server.spent_key).embed_query("a")


def test_huggingface(server: Server, same: Same) -> None:
    client = HuggingFaceEndpointEmbeddings(model="any")
    client.client = InferenceClient(server.address, token=server.key)
    client.async_client = AsyncInferenceClient(server.address, token=server.key)
    assert same([client.embed_query(TEXTS[0])], TEXTS[:1])
    assert same(asyncio.run(client.aembed_documents(TEXTS)))
    client.client = InferenceClient(server.address, token="wrong")
    with pytest.raises(HfHubHTTPError, match="needs a key"):
        client.embed_query("a")


def test_ollama(server: Server, same: Same) -> None:
    def client(model: str, key: str = server.key) -> OllamaEmbeddings:
        options = {"headers": {"authorization": f"Bearer {key}"}}
        return OllamaEmbeddings(model=model, base_url=server.address, client_kwargs=options, num_ctx=8192)

    assert same([client(server.model).embed_query(TEXTS[0])], TEXTS[:1])
    assert same(asyncio.run(client(f"{server.model}:latest").aembed_documents(TEXTS)))
    for refused, says in ((client("other"), "no model 'other'"), (client(server.model, "wrong"), "needs a key")):
        with pytest.raises(ollama.ResponseError, match=says):
            refused.embed_query("a")


def test_azure(server: Server, same: Same) -> None:
    client = AzureOpenAIEmbeddings(
        azure_endpoint=server.address,
        azure_deployment=server.model,
        api_version="2024-10-21",
        api_key=server.key,
        check_embedding_ctx_length=False,
    )
    assert same(client.embed_documents(TEXTS))
