"""A corpus whose words are found by their stems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi.testclient import TestClient

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


def ids(client: TestClient, query: str, name: str = "c", **body: Any) -> list[str]:
    asked = {"query": query, "mode": "lexical"} | body
    hits = client.post(f"/corpora/{name}/search", json=asked).raise_for_status().json()["hits"]
    return sorted(hit["id"] for hit in hits)


def test_words_are_found_as_they_are_unless_asked_for_otherwise(client: TestClient) -> None:
    assert filled(client)["stemming"] == "none"
    assert ids(client, "connections pipe") == []
    assert ids(client, "connection") == ["two"]


def test_words_are_found_by_their_stems(client: TestClient) -> None:
    assert filled(client, stemming="porter")["stemming"] == "porter"
    assert ids(client, "connected") == ["one", "two"]
    assert ids(client, '"connecting the pipe"') == ["one"]
    asked = {"query": "connecting", "mode": "hybrid", "highlight": True}
    hits = client.post("/corpora/c/search", json=asked).json()["hits"]
    marked = {hit["id"]: [hit["text"][one["start"] : one["end"]] for one in hit["highlights"]] for hit in hits}
    assert marked == {"one": ["connect"], "two": ["connection"], "three": []}
    assert {hit["id"] for hit in hits if hit["lexical"]} == {"one", "two"}


def test_a_corpus_changes_its_stemming(client: TestClient) -> None:
    filled(client, description="kept")
    for stemming, found in (("porter", ["one", "two"]), ("porter", ["one", "two"]), ("none", [])):
        changed = client.put("/corpora/c", json={"stemming": stemming})
        assert (changed.status_code, changed.json()["stemming"]) == (200, stemming)
        assert ids(client, "connects") == found
    assert client.put("/corpora/c", json={"stemming": "porter"}).json()["description"] == "kept"
    assert client.put("/corpora/c", json={"recall_target": 0.9}).json()["stemming"] == "porter"
    client.delete("/corpora/c/documents/one").raise_for_status()
    client.post("/corpora/c/documents", json={"documents": [{"id": "two", "text": "Loose"}]}).raise_for_status()
    client.post("/corpora/c/documents", json={"documents": [{"id": "four", "text": "connected"}]}).raise_for_status()
    assert ids(client, "connects") == ["four"]


def test_passages_are_indexed_anew_one_by_one(client: TestClient) -> None:
    client.put("/corpora/c").raise_for_status()
    text = " ".join(["filler"] * 30) + ". Only here it connects. " + " ".join(["filler"] * 30) + "."
    cut = "/corpora/c/documents?chunk_tokens=16"
    client.post(cut, json={"documents": [{"id": "long", "text": text}]}).raise_for_status()
    client.put("/corpora/c", json={"stemming": "porter"}).raise_for_status()
    answer = client.post("/corpora/c/search", json={"query": "connection", "mode": "lexical"}).json()
    (hit,) = answer["hits"]
    assert "connects" in hit["text"]
    assert hit["text"] == text[hit["span"]["start"] : hit["span"]["end"]]


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
