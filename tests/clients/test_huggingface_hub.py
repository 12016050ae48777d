from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.clients.conftest import QUERY, TEXTS, Server

Same = Callable[..., bool]


@pytest.fixture
def client(server: Server) -> InferenceClient:
    return InferenceClient(server.address, token=server.key)


def test_feature_extraction(client: InferenceClient, same: Same) -> None:
    assert same(client.feature_extraction(TEXTS[0]), TEXTS[:1])
    vectors = client.feature_extraction(TEXTS, normalize=True, truncate=True, truncation_direction="left")
    assert vectors.dtype == np.float32
    assert same(vectors)


def test_fewer_dimensions(client: InferenceClient, server: Server) -> None:
    cut = client.feature_extraction(TEXTS[0], dimensions=8, encoding_format="float")
    whole = server.embed(TEXTS[:1])[:, :8]
    np.testing.assert_allclose(cut, whole / np.linalg.norm(whole), atol=1e-6)


def test_sentence_similarity(client: InferenceClient, server: Server) -> None:
    assert client.sentence_similarity(QUERY, other_sentences=TEXTS) == pytest.approx(server.cosines(), abs=1e-5)


def test_async(server: Server, same: Same) -> None:
    async def main() -> None:
        async with AsyncInferenceClient(server.address, token=server.key) as client:
            assert same(await client.feature_extraction(TEXTS))
            cosines = await client.sentence_similarity(QUERY, other_sentences=TEXTS)
        assert cosines == pytest.approx(server.cosines(), abs=1e-5)

    asyncio.run(main())


def test_a_model_by_its_name(server: Server, same: Same) -> None:
    """Use the address of a deployment that contains the model and the task."""
    name = server.post("/v1/embeddings", {"input": "a"})["model"]
    address = f"{server.address}/models/{name}/pipeline"
    assert same(InferenceClient(f"{address}/feature-extraction", token=server.key).feature_extraction(TEXTS))
    client = InferenceClient(f"{address}/sentence-similarity", token=server.key)
    cosines = client.sentence_similarity(QUERY, other_sentences=TEXTS)
    assert cosines == pytest.approx(server.cosines(), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "says"), [({"dimensions": 1_000_000}, "dimensions"), ({"prompt_name": "none"}, "prompt_name")]
)
def test_wrong_values(client: InferenceClient, options: dict[str, Any], says: str) -> None:
    with pytest.raises(HfHubHTTPError, match=says) as caught:
        client.feature_extraction("a", **options)
    assert caught.value.response.status_code == 422


@pytest.mark.parametrize(("key", "status", "says"), [("wrong", 401, "needs a key"), ("spent_key", 429, "used up")])
def test_keys(server: Server, key: str, status: int, says: str) -> None:
    client = InferenceClient(server.address, token=getattr(server, key, key))
    with pytest.raises(HfHubHTTPError, match=says) as caught:
        client.feature_extraction("a")
    assert caught.value.response.status_code == status
