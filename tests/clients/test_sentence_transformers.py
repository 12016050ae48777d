from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from tests.clients.conftest import BUNDLE, QUERY, TEXTS, Server


@pytest.fixture(scope="module")
def encoder() -> SentenceTransformer:
    return SentenceTransformer(str(BUNDLE), device="cpu")


def test_the_bundle_gives_the_servers_vectors(encoder: SentenceTransformer, server: Server) -> None:
    texts = [*TEXTS, QUERY, "word " * 1000, "", "a"]
    theirs = encoder.encode(texts, batch_size=3)
    assert np.sum(theirs * server.embed(texts), axis=1).min() >= 0.9999
    assert np.linalg.norm(theirs, axis=1) == pytest.approx(1, abs=1e-5)


def test_similarity(encoder: SentenceTransformer, server: Server) -> None:
    theirs = encoder.similarity(encoder.encode([QUERY]), encoder.encode(TEXTS))[0].numpy()
    assert theirs == pytest.approx(server.cosines(), abs=1e-4)


def test_roles(encoder: SentenceTransformer, server: Server) -> None:
    """Check that `encode_query`, `encode_document` and Cohere's `input_type` all use the bundle's prompts."""
    for role, encode in (("search_query", encoder.encode_query), ("search_document", encoder.encode_document)):
        asked = {"texts": TEXTS, "input_type": role, "embedding_types": ["float"]}
        ours = np.array(server.post("/v2/embed", asked)["embeddings"]["float"])
        assert np.sum(ours * encode(TEXTS), axis=1).min() >= 0.9999
