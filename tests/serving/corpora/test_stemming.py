"""A corpus whose words are found by their stems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

pytestmark = pytest.mark.backends
DOCUMENTS = [
    {"id": "one", "text": "They connect the pipes."},
    {"id": "two", "text": "A loose connection."},
    {"id": "three", "text": "Pipelines of oil."},
]


def filled(client: TestClient, **corpus: Any) -> dict[str, Any]:
    created = client.put("/corpora/c", json=corpus)
    assert created.status_code == 201
    client.post("/corpora/c/documents", json={"documents": DOCUMENTS}).raise_for_status()
    found: dict[str, Any] = created.json()
    return found


def scores(client: TestClient, query: str, name: str = "c") -> dict[str, float]:
    asked = {"query": query, "mode": "lexical"}
    hits = client.post(f"/corpora/{name}/search", json=asked).raise_for_status().json()["hits"]
    return {hit["id"]: hit["score"] for hit in hits}


def ids(client: TestClient, query: str, name: str = "c") -> list[str]:
    return sorted(scores(client, query, name))


def test_words_are_found_as_they_are_unless_asked_for_otherwise(client: TestClient) -> None:
    assert filled(client)["stemming"] == "none"
    assert ids(client, "connections pipe") == []
    assert ids(client, "connection") == ["two"]


def test_words_are_found_by_their_stems(client: TestClient) -> None:
    assert filled(client, stemming="porter")["stemming"] == "porter"
    assert ids(client, "connected") == ["one", "two"]
    assert ids(client, '"connecting the pipe"') == ["one"]
    assert scores(client, "connects") == scores(client, "connects connected"), "a stem counts once"
    asked = {"query": "connecting", "mode": "hybrid", "highlight": True}
    hits = client.post("/corpora/c/search", json=asked).json()["hits"]
    marked = {hit["id"]: [hit["text"][one["start"] : one["end"]] for one in hit["highlights"]] for hit in hits}
    assert marked == {"one": ["connect"], "two": ["connection"], "three": []}
    assert {hit["id"] for hit in hits if hit["lexical"]} == {"one", "two"}


def test_a_corpus_keeps_its_stemming_while_it_holds_documents(client: TestClient, refuses: Callable[..., None]) -> None:
    assert client.put("/corpora/c").json()["stemming"] == "none"
    filled_later = client.put("/corpora/c", json={"stemming": "porter"})
    assert (filled_later.status_code, filled_later.json()["stemming"]) == (200, "porter")
    client.post("/corpora/c/documents", json={"documents": DOCUMENTS}).raise_for_status()
    before = client.get("/corpora/c").json()
    other = {"stemming": "none", "description": "new", "recall_target": 0.5}
    refuses((409, "Conflict", "stemming 'porter': create another corpus with 'none'"), "PUT", "/corpora/c", json=other)
    assert client.get("/corpora/c").json() == before
    for same in ({}, {"stemming": None}, {"stemming": "porter"}, {"recall_target": 0.9}):
        assert client.put("/corpora/c", json=same).json()["stemming"] == "porter"
    client.delete("/corpora/c/documents/one").raise_for_status()
    client.post("/corpora/c/documents", json={"documents": [{"id": "two", "text": "Loose"}]}).raise_for_status()
    client.post("/corpora/c/documents", json={"documents": [{"id": "four", "text": "connected"}]}).raise_for_status()
    assert ids(client, "connects") == ["four"]
    for id in ("two", "three", "four"):
        client.delete(f"/corpora/c/documents/{id}").raise_for_status()
    assert client.put("/corpora/c", json={"stemming": "none"}).json()["stemming"] == "none"
    client.post("/corpora/c/documents", json={"documents": DOCUMENTS}).raise_for_status()
    assert ids(client, "connects") == []


def test_it_is_named_in_any_case(client: TestClient) -> None:
    assert filled(client, stemming="PORTER")["stemming"] == "porter"


@pytest.mark.backends("sqlite")
def test_a_snapshot_keeps_the_stemming(client: TestClient) -> None:
    filled(client, stemming="porter")
    job = client.post("/corpora/c/snapshots").json()
    client.get(f"/jobs/{job['id']}/events").raise_for_status()
    made = client.get(f"/jobs/{job['id']}").json()["result"]["id"]
    job = client.put("/corpora/copy/restore", json={"snapshot": made, "of": "c"}).json()
    client.get(f"/jobs/{job['id']}/events").raise_for_status()
    assert client.get(f"/jobs/{job['id']}").json()["state"] == "succeeded"
    assert client.get("/corpora/copy").json()["stemming"] == "porter"
    assert ids(client, "connected", "copy") == ["one", "two"]


def test_any_other_stemming_is_refused(client: TestClient, refuses: Callable[..., None]) -> None:
    wrong: tuple[Any, ...] = ("german", "", 1, True)
    for stemming in wrong:
        refuses((422, "Validation", "stemming: "), "PUT", "/corpora/c", json={"stemming": stemming})
    assert client.get("/corpora/c").status_code == 404
