from __future__ import annotations

from collections.abc import Callable
from typing import Any

import litellm
import pytest
from txtai import Embeddings

from tests.clients.conftest import QUERY, TEXTS, Server


def embeddings(server: Server, key: str) -> Any:
    asked = {"api_base": f"{server.address}/v1", "api_key": key, "max_retries": 0}
    return Embeddings(path="openai/any", method="litellm", vectors=asked, content=True)


def test_an_index_of_our_vectors(server: Server, same: Callable[..., bool]) -> None:
    index = embeddings(server, server.key)
    assert same([index.transform(TEXTS[0])], TEXTS[:1])
    index.index(TEXTS)
    hits = index.search(QUERY, 2)
    assert [hit["text"] for hit in hits] == server.ranking()[:2]
    assert hits[0]["score"] == pytest.approx(server.cosines().max(), abs=1e-4)


def test_keys(server: Server) -> None:
    with pytest.raises(litellm.AuthenticationError, match="needs a key"):
        embeddings(server, "wrong").index(TEXTS)
