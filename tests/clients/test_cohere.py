from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import cohere
import numpy as np
import pytest

from tests.clients.conftest import QUERY, TEXTS, Server

Same = Callable[..., bool]
ASKED = {"model": "any", "input_type": "search_document"}


@pytest.fixture
def client(server: Server) -> Any:
    return cohere.ClientV2(server.key, base_url=server.address, max_retries=0)


def test_embed(client: Any, same: Same) -> None:
    answer = client.embed(texts=TEXTS, embedding_types=["float", "ubinary"], **ASKED)
    assert same(answer.embeddings.float_)
    bits = np.unpackbits(np.array(answer.embeddings.ubinary, dtype=np.uint8), axis=1)
    assert np.array_equal(bits, np.array(answer.embeddings.float_) >= 0)
    assert answer.texts == TEXTS
    assert answer.meta.billed_units.input_tokens > len(TEXTS)


def test_more_texts_than_it_sends_at_once(client: Any, same: Same) -> None:
    texts = [f"text {i}" for i in range(200)]
    assert same(client.embed(texts=texts, embedding_types=["float"], **ASKED).embeddings.float_, texts)


def test_rerank(client: Any, server: Server) -> None:
    results = client.rerank(model="any", query=QUERY, documents=TEXTS, top_n=2).results
    assert [TEXTS[one.index] for one in results] == server.ranking()[:2]
    assert results[0].relevance_score == pytest.approx(server.cosines().max(), abs=1e-5)


def test_async(server: Server, same: Same) -> None:
    async def main() -> None:
        async with cohere.AsyncClientV2(server.key, base_url=server.address) as client:
            assert same((await client.embed(texts=TEXTS, embedding_types=["float"], **ASKED)).embeddings.float_)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("key", "raised", "says"),
    [("wrong", cohere.UnauthorizedError, "needs a key"), ("spent_key", cohere.TooManyRequestsError, "used up")],
)
def test_keys(server: Server, key: str, raised: Any, says: str) -> None:
    client = cohere.ClientV2(getattr(server, key, key), base_url=server.address, max_retries=0)
    with pytest.raises(raised) as caught:
        client.embed(texts=["a"], embedding_types=["float"], **ASKED)
    assert says in caught.value.body["message"]


def test_a_wrong_value_is_named_as_it_was_sent(client: Any) -> None:
    with pytest.raises(cohere.UnprocessableEntityError) as caught:
        client.embed(texts=["a"], embedding_types=["float"], output_dimension=1_000_000, **ASKED)
    assert caught.value.body["message"].startswith("output_dimension: ")
