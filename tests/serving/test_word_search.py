"""Tests of keyword search over HTTP: options, settings, highlights in fields, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.serving.backends import WITH_MILVUS

SETTINGS: dict[str, Any] = {
    "synonyms": {"sea": ["ocean"]},
    "stop_words": ["the"],
    "fields": {"title": 2.0, "tags": 1.0},
}
TEXT = "a captain hunts a whale"
DOCUMENTS = [
    {"id": "moby", "text": TEXT, "title": "The white whale", "tags": ["ocean", 7, "whaling"]},
    {"id": "emma", "text": "a young woman makes matches"},
]


@pytest.fixture
def books(client: TestClient) -> TestClient:
    assert client.put("/corpora/c", json=SETTINGS).status_code == 201
    client.post("/corpora/c/documents", json={"documents": DOCUMENTS}).raise_for_status()
    return client


def hits(client: TestClient, query: str, **body: Any) -> list[dict[str, Any]]:
    answer = client.post("/corpora/c/search", json={"mode": "lexical", "query": query, "highlight": True, **body})
    found: list[dict[str, Any]] = answer.raise_for_status().json()["hits"]
    return found


def marked(text: str, spans: list[dict[str, int]]) -> list[str]:
    return [text[span["start"] : span["end"]] for span in spans]


@pytest.mark.parametrize(
    ("query", "options", "marks"),
    [
        ("whale", {}, {TEXT: ["whale"], "The white whale": ["whale"]}),
        ("whal", {"prefix": True}, {TEXT: ["whale"], "The white whale": ["whale"], "whaling": ["whaling"]}),
        ("whlae", {"typos": True}, {TEXT: ["whale"], "The white whale": ["whale"]}),
        ("the sea", {}, {TEXT: [], "ocean": ["ocean"]}),
        ("catpa", {"typos": True, "prefix": True}, {TEXT: ["captain"]}),
    ],
)
@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_highlights_follow_the_words(
    books: TestClient, mode: str, query: str, options: dict[str, bool], marks: dict[str, list[str]]
) -> None:
    (hit,) = (hit for hit in hits(books, query, mode=mode, **options) if hit["id"] == "moby")
    found = [hit, *hit["field_highlights"]]
    assert {one["text"]: marked(one["text"], one["highlights"]) for one in found} == marks
    assert {one["field"] for one in hit["field_highlights"]} <= {"title", "tags"}
    assert mode == "lexical" or hit["lexical"] is not None


def test_without_the_options_and_settings_nothing_changes(books: TestClient) -> None:
    assert hits(books, "whal") == hits(books, "whlae") == []
    books.put("/corpora/c", json={"synonyms": {}, "stop_words": [], "fields": {}}).raise_for_status()
    (hit,) = hits(books, "the sea whale")
    assert "field_highlights" not in hit
    assert hits(books, "ocean") == []


def test_settings_are_shown_and_kept_by_snapshots(books: TestClient) -> None:
    assert books.get("/corpora/c").json().items() >= SETTINGS.items()
    books.put("/corpora/c", json={"description": "new", "fields": None}).raise_for_status()
    job = books.post("/corpora/c/snapshots").json()
    books.get(f"/jobs/{job['id']}/events").raise_for_status()
    made = books.get(f"/jobs/{job['id']}").json()["result"]["id"]
    job = books.put("/corpora/copy/restore", json={"snapshot": made, "of": "c"}).json()
    books.get(f"/jobs/{job['id']}/events").raise_for_status()
    assert books.get(f"/jobs/{job['id']}").json()["state"] == "succeeded"
    assert books.get("/corpora/copy").json().items() >= SETTINGS.items()


def test_a_cursor_belongs_to_the_options(books: TestClient, refuses: Callable[..., None]) -> None:
    asked = {"mode": "lexical", "query": "a", "k": 1, "prefix": True}
    cursor = books.post("/corpora/c/search", json=asked).json()["cursor"]
    assert books.post("/corpora/c/search", json=asked | {"cursor": cursor}).status_code == 200
    other = asked | {"cursor": cursor, "prefix": False}
    refuses((422, "Validation", "cursor: belongs to another search"), "POST", "/corpora/c/search", json=other)


@pytest.mark.parametrize("option", ["prefix", "typos"])
def test_dense_search_looks_for_no_words(books: TestClient, refuses: Callable[..., None], option: str) -> None:
    asked = {"query": "whale", option: True}
    says = f"{option}: does not work in dense search: set mode to lexical or hybrid"
    refuses((422, "Validation", says), "POST", "/corpora/c/search", json=asked)
    assert books.post("/corpora/c/search", json=asked | {option: False}).status_code == 200


@pytest.mark.parametrize(
    ("asked", "field"),
    [({"fusion": "weighted"}, "fusion"), ({"mode": "hybrid", "alpha": 0.3}, "alpha"), ({"alpha": 0.3}, "alpha")],
)
def test_weights_without_effect_are_refused(
    books: TestClient, refuses: Callable[..., None], asked: dict[str, Any], field: str
) -> None:
    refuses((422, "Validation", f"{field}: "), "POST", "/corpora/c/search", json={"query": "whale", **asked})
    defaults = {"query": "whale", "fusion": "rrf", "alpha": 0.5}
    assert books.post("/corpora/c/search", json=defaults).status_code == 200


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"synonyms": {"": ["a"]}}, "synonyms"),
        ({"synonyms": {"a": "b"}}, "synonyms.a"),
        ({"synonyms": {"a": ["b"] * 21}}, "synonyms.a"),
        ({"synonyms": {"a": ["b" * 101]}}, "synonyms.a.0"),
        ({"synonyms": {f"{i}": ["b"] for i in range(1001)}}, "synonyms"),
        ({"synonyms": {f"{i}": ["b" * 100] for i in range(1000)}}, "synonyms: "),
        ({"stop_words": "the"}, "stop_words"),
        ({"stop_words": ["the", ""]}, "stop_words.1"),
        ({"stop_words": ["w"] * 1001}, "stop_words"),
        ({"fields": ["title"]}, "fields"),
        ({"fields": {"title": 0}}, "fields.title"),
        ({"fields": {"title": 101}}, "fields.title"),
        ({"fields": {"title": "heavy"}}, "fields.title"),
        ({"fields": {f"f{i}": 1 for i in range(9)}}, "fields"),
        ({"fields": {"": 1}}, "fields"),
        ({"field": {"title": 1}}, "field: is not a field of this request"),
    ],
)
def test_settings_are_checked(client: TestClient, refuses: Callable[..., None], settings: Any, says: str) -> None:
    refuses((422, "Validation", says), "PUT", "/corpora/c", json=settings)
    assert client.get("/corpora/c").status_code == 404


def test_changed_metadata_is_found_by_its_new_words(books: TestClient) -> None:
    books.patch("/corpora/c/documents/moby", json={"metadata": {"title": "Leviathan"}}).raise_for_status()
    assert [hit["id"] for hit in hits(books, "leviathan")] == ["moby"]
    assert hits(books, "white") == []
    books.patch("/corpora/c/documents/moby", json={"metadata": {"other": "squid"}}).raise_for_status()
    assert hits(books, "squid") == []


def test_totals_count_what_is_found(books: TestClient) -> None:
    asked = {"mode": "lexical", "query": "womna", "total": True}
    assert books.post("/corpora/c/search", json=asked).json()["total"] == 0
    assert books.post("/corpora/c/search", json=asked | {"typos": True}).json()["total"] == 1
    found = books.get("/corpora/c/search", params={"q": "wom", "mode": "lexical", "prefix": True}).json()
    assert [hit["id"] for hit in found["hits"]] == ["emma"]


@pytest.mark.slow
@WITH_MILVUS
@pytest.mark.backends("milvus")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"query": "a", "mode": "lexical", "typos": True}, "typos"),
        ({"query": "a", "mode": "hybrid", "prefix": True}, "prefix"),
        ({"query": "a", "filter": {"title": {"$contains": "a"}}}, "filter"),
    ],
)
def test_corpora_on_milvus_refuse_words_beyond_the_query(client: TestClient, body: dict[str, Any], field: str) -> None:
    assert client.put("/corpora/c", json={"fields": {"title": 2.0}}).status_code == 422
    client.put("/corpora/c").raise_for_status()
    document = {"id": "a", "text": "a text", "metadata": {"title": "a"}}
    client.post("/corpora/c/documents", json={"documents": [document]}).raise_for_status()
    answer = client.post("/corpora/c/search", json=body)
    assert (answer.status_code, answer.json()["error"].split(":")[0]) == (422, field)
