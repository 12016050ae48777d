"""Tests of documents that the corpus's encoder embedded elsewhere: they are stored as if embedded here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.serving.test_moving_corpora import ended

pytestmark = pytest.mark.backends
Refuses = Callable[..., None]
TEXTS = [f"the text about {i}" for i in range(40)]


@pytest.fixture
def documents(client: TestClient) -> list[dict[str, Any]]:
    """Return documents with the encoder's vectors of their texts."""
    vectors = client.post("/embed", json={"inputs": TEXTS}).json()
    client.put("/corpora/c", json={}).raise_for_status()
    return [{"id": str(i), "text": text, "vector": vectors[i]} for i, text in enumerate(TEXTS)]


@pytest.fixture
def path(client: TestClient) -> str:
    return f"/corpora/c/documents?embedded_by={client.get('/info').json()['fingerprint']}"


@pytest.mark.parametrize("in_background", [False, True])
def test_they_are_found_as_if_they_had_been_embedded_here(
    client: TestClient, documents: list[dict[str, Any]], path: str, in_background: bool
) -> None:
    client.put("/corpora/here", json={}).raise_for_status()
    texts = [{name: value for name, value in row.items() if name != "vector"} for row in documents]
    client.post("/corpora/here/documents", json={"documents": texts}).raise_for_status()
    answer = client.post(f"{path}&async={str(in_background).lower()}", json={"documents": documents})
    if in_background:
        assert ended(client, answer)["state"] == "succeeded"
    answer.raise_for_status()
    described = client.get("/corpora/c").json()
    assert (described["vectors"], described["fingerprint"]) == ("encoder", path.partition("=")[2])
    found, expected = (
        client.post(f"/corpora/{name}/search", json={"query": TEXTS[7], "k": 40, "with_vector": True}).json()["hits"]
        for name in ("c", "here")
    )
    assert [hit["id"] for hit in found] == [hit["id"] for hit in expected]
    assert [hit["score"] for hit in found] == pytest.approx([hit["score"] for hit in expected], abs=1e-5)
    client.post("/corpora/c/documents", json={"documents": texts}).raise_for_status()  # The corpus is like any other.


def test_vectors_that_the_encoder_did_not_make_are_refused(
    client: TestClient, documents: list[dict[str, Any]], path: str, refuses: Refuses
) -> None:
    conflict = (409, "Conflict")
    other = [documents[0] | {"vector": documents[1]["vector"]}]
    cut = [documents[0] | {"vector": documents[0]["vector"][:3]}]
    differs = "embedded_by: the vector of document '0' differs from the encoder's own vector"
    for wrong in (other, cut):
        refuses((*conflict, differs), "POST", path, json=wrong)
    refuses((*conflict, "documents.1.vector: is required"), "POST", path, json=[documents[0], {"text": "none"}])
    unknown = "/corpora/c/documents?embedded_by=" + 64 * "0"
    refuses((*conflict, "embedded_by: '0000"), "POST", unknown, json=documents)
    refuses((422, "Validation", "chunk_tokens: "), "POST", f"{path}&chunk_tokens=16", json=documents)
    client.put("/corpora/own", json={"vectors": "own"}).raise_for_status()
    refuses(
        (*conflict, "embedded_by: the vectors of corpus 'own' come with its documents"),
        "POST",
        path.replace("/c/", "/own/"),
        json=documents,
    )
    assert client.get("/corpora/c").json()["documents"] == 0


def test_a_job_checks_its_vectors(client: TestClient, documents: list[dict[str, Any]], path: str) -> None:
    rows = "\n".join(json.dumps(row | {"vector": documents[0]["vector"]}) for row in documents[1:])
    headers = {"content-type": "application/x-ndjson"}
    job = ended(client, client.post(f"{path}&async=true", content=rows, headers=headers))
    assert job["state"] == "failed"
    assert "own vector of its text (cosine" in job["errors"][0]["error"]
