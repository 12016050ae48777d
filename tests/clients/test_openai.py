from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.clients.conftest import TEXTS, Server

Same = Callable[..., bool]


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key=server.key, max_retries=0)


@pytest.mark.parametrize(
    ("options", "asks", "gets"), [({}, "base64", str), ({"encoding_format": "float"}, "float", list)]
)
def test_base64_unless_floats_are_asked_for(
    client: openai.OpenAI, same: Same, options: dict[str, Any], asks: str, gets: type
) -> None:
    raw = client.embeddings.with_raw_response.create(model="any", input=TEXTS, **options)
    assert json.loads(raw.http_request.content)["encoding_format"] == asks
    assert isinstance(raw.http_response.json()["data"][0]["embedding"], gets)
    answer = raw.parse()
    assert same([one.embedding for one in answer.data])
    assert [one.index for one in answer.data] == list(range(len(TEXTS)))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)


def test_one_text_and_fewer_dimensions(client: openai.OpenAI, server: Server) -> None:
    (cut,) = client.embeddings.create(model="any", input=TEXTS[0], dimensions=8).data
    whole = server.embed(TEXTS[:1])[0, :8]
    assert cut.embedding == pytest.approx(whole / (whole @ whole) ** 0.5, abs=1e-6)


def test_token_arrays(client: openai.OpenAI, server: Server, same: Same) -> None:
    tokens = server.post("/tokenize", {"inputs": TEXTS})
    ids = [[token["id"] for token in text] for text in tokens]
    assert same([one.embedding for one in client.embeddings.create(model="any", input=ids).data])
    assert same([client.embeddings.create(model="any", input=ids[0]).data[0].embedding], TEXTS[:1])


def test_models(client: openai.OpenAI) -> None:
    (listed,) = client.models.list()
    assert client.models.retrieve(listed.id) == listed
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        client.models.retrieve("no-such-model")


def test_two_thousand_texts(client: openai.OpenAI, same: Same) -> None:
    texts = [f"text {i}" for i in range(2048)]
    vectors = [one.embedding for one in client.embeddings.create(model="any", input=texts).data]
    assert same(vectors[::200], texts[::200])


def test_async(server: Server, same: Same) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key=server.key) as client:
            answers = await asyncio.gather(*(client.embeddings.create(model="any", input=text) for text in TEXTS))
        assert same([answer.data[0].embedding for answer in answers])

    asyncio.run(main())


@pytest.fixture
def azure(server: Server) -> openai.AzureOpenAI:
    return openai.AzureOpenAI(
        azure_endpoint=server.address, api_version="2024-10-21", api_key=server.key, max_retries=0
    )


def test_azure(azure: openai.AzureOpenAI, server: Server, same: Same) -> None:
    raw = azure.embeddings.with_raw_response.create(model=server.model, input=TEXTS)
    sent = raw.http_request
    assert (sent.url.path, sent.url.query) == (
        f"/openai/deployments/{server.model}/embeddings",
        b"api-version=2024-10-21",
    )
    assert sent.headers["api-key"] == server.key and "authorization" not in sent.headers
    assert same([one.embedding for one in raw.parse().data])


def test_a_deployment_of_azure_in_the_address(server: Server, same: Same) -> None:
    """Send the key as a token in `Authorization`, as a client of Entra ID does."""
    client = openai.AzureOpenAI(
        azure_endpoint=server.address,
        azure_deployment=server.model,
        api_version="2024-10-21",
        azure_ad_token=server.key,
    )
    assert same([one.embedding for one in client.embeddings.create(model="any", input=TEXTS).data])


def test_azure_refuses(azure: openai.AzureOpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such-model") as missing:
        azure.embeddings.create(model="no-such-model", input="a")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.AuthenticationError, match="needs a key"):
        azure.with_options(api_key="wrong").embeddings.create(model=server.model, input="a")
    with pytest.raises(openai.RateLimitError, match="used up"):
        azure.with_options(api_key=server.spent_key).embeddings.create(model=server.model, input="a")


def test_it_comes_back_after_a_429(server: Server, client: openai.OpenAI) -> None:
    patient = client.with_options(api_key=server.slow_key, max_retries=2).embeddings.with_raw_response
    assert max(patient.create(model="any", input="a").retries_taken for _ in range(2)) >= 1


@pytest.mark.parametrize(
    ("raised", "asked", "says"),
    [
        (openai.BadRequestError, {"input": [[2_000_000]]}, "check_embedding_ctx_length=False"),
        (openai.BadRequestError, {"input": []}, "input"),
        (openai.UnprocessableEntityError, {"dimensions": 1_000_000}, "dimensions"),
        (openai.UnprocessableEntityError, {"encoding_format": "roman"}, "encoding_format"),
    ],
)
def test_refusals(client: openai.OpenAI, raised: type[openai.APIStatusError], asked: dict[str, Any], says: str) -> None:
    with pytest.raises(raised, match=says) as caught:
        client.embeddings.create(**{"model": "any", "input": "a"} | asked)
    assert str(caught.value.param).partition(".")[0] in asked
    assert caught.value.request_id


@pytest.mark.parametrize(
    ("key", "raised", "says"),
    [("wrong", openai.AuthenticationError, "needs a key"), ("spent_key", openai.RateLimitError, "used up")],
)
def test_keys(client: openai.OpenAI, server: Server, key: str, raised: type[openai.APIStatusError], says: str) -> None:
    with pytest.raises(raised, match=says):
        client.with_options(api_key=getattr(server, key, key)).embeddings.create(model="any", input="a")
