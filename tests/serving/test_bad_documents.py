"""Tests of invalid documents and searches: the error names the problem, and nothing is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.operations.json_body import unwritable

JSON = {"content-type": "application/json"}
Refusal = tuple[int, str, str]
"""Status, kind, and a part of the message."""
Refuses = Callable[..., None]


DOCUMENTS = [
    ((400, "Empty", "documents: must contain"), {"documents": []}),
    ((422, "Validation", "documents: must be a list"), {}),
    ((422, "Validation", "documents: must be a list"), {"documents": None}),
    ((422, "Validation", "documents.1: must be an object"), {"documents": [{"text": "a"}, "b"]}),
    ((422, "Validation", "documents.1.text: is required"), {"documents": [{"text": "a"}, {"id": "b"}]}),
    ((422, "Validation", "documents.0.text: must be a string"), {"documents": [{"text": 3}]}),
    ((422, "Validation", "documents.0.text: not valid Unicode"), {"documents": [{"text": "\ud800"}]}),
    ((422, "Validation", "documents.0.id: must be a string or an integer"), {"documents": [{"text": "a", "id": 3.5}]}),
    ((422, "Validation", "documents.0.id: must be 1 to 512 bytes"), {"documents": [{"text": "a", "id": ""}]}),
    ((422, "Validation", "documents.0.id: must be 1 to 512 bytes"), {"documents": [{"text": "a", "id": "é" * 257}]}),
    ((422, "Validation", "documents.0.id: must not contain NUL"), {"documents": [{"text": "a", "id": "a\0"}]}),
    ((422, "Validation", "documents.0.id: not valid Unicode"), {"documents": [{"text": "a", "id": "\udfff"}]}),
    *(
        ((422, "Validation", f"documents.0.id: must not be {id!r}"), {"documents": [{"text": "a", "id": id}]})
        for id in (".", "..")
    ),
    (
        (422, "Validation", "documents.2.id: 'x' is already the id of documents.0"),
        {"documents": [{"text": "a", "id": "x"}, {"text": "b"}, {"text": "c", "id": "x"}]},
    ),
    ((422, "Validation", "documents.0.metadata: must be an object"), {"documents": [{"text": "a", "metadata": []}]}),
    (
        (422, "Validation", "documents.0.metadata.n.0: numbers must be finite"),
        {"documents": [{"text": "a", "metadata": {"n": [float("nan")]}}]},
    ),
    (
        (422, "Validation", "documents.0.metadata.\\ud800: not valid Unicode"),
        {"documents": [{"text": "a", "metadata": {"\ud800": 1}}]},
    ),
    (
        (422, "Validation", "documents.0.metadata.n: nested deeper"),
        {"documents": [{"text": "a", "metadata": {"n": json.loads("[" * 60 + "]" * 60)}}]},
    ),
    (
        (413, "Validation", "documents.0.metadata: 65545 bytes"),
        {"documents": [{"text": "a", "metadata": {"n": "a" * 65_537}}]},
    ),
    ((413, "Validation", "documents.1.text: 1000000 bytes"), {"documents": [{"text": "a"}, {"text": "a" * 1_000_000}]}),
    *(
        (
            (422, "Validation", f"documents.1.metadata.{path}: integers must be from -2^63 to 2^64 - 1"),
            {"documents": [{"text": "a"}, {"text": "b", "metadata": bad}]},
        )
        for path, bad in (
            ("n", {"m": 1, "n": 2**64}),
            ("n.1.m", {"n": [1, {"l": [], "m": -(2**63) - 1}]}),
            ("n", {"n": 10**400}),
        )
    ),
    (
        (422, "Validation", "documents.0.metadata.a.n: integers must be"),
        {"documents": [{"text": "a", "metadata": {"a": {"n": 2**64}, "b": float("nan")}}]},
    ),
    ((422, "Validation", "documents.0: must be an object"), {"documents": [1] * 257}),
]


@pytest.mark.parametrize(("refusal", "body"), DOCUMENTS)
def test_documents_and_nothing_is_kept(refuses: Refuses, client: TestClient, refusal: Refusal, body: Any) -> None:
    client.put("/corpora/c")
    path = "/corpora/c/documents"
    refuses(refusal, "POST", path, content=json.dumps(body), headers=JSON)
    assert client.get("/corpora/c").json()["documents"] == 0
    assert client.get(path).json() == {"documents": [], "cursor": None, "count": 0}


def test_documents_of_another_type(refuses: Refuses, client: TestClient) -> None:
    client.put("/corpora/c")
    refuses(
        (415, "Validation", "text/csv"),
        "POST",
        "/corpora/c/documents",
        content=b"a",
        headers={"content-type": "text/css"},
    )
    refuses((400, "Validation", "not JSON"), "POST", "/corpora/c/documents", content=b"{", headers=JSON)
    refuses(
        (422, "Validation", "on_error"),
        "POST",
        "/corpora/c/documents?on_error=x",
        json={"documents": [{"text": "a"}]},
    )


def test_the_largest_integers_are_kept_as_they_are(client: TestClient) -> None:
    client.put("/corpora/c")
    metadata = {"n": [2**64 - 1, -(2**63)], "digits": "1" * 30, "float": 1e30}
    client.post("/corpora/c/documents", json={"documents": [{"id": "a", "text": "a", "metadata": metadata}]})
    assert client.get("/corpora/c/documents/a").json()["metadata"] == metadata


NDJSON = (
    b'{"id": "a", "text": "one"}\n\n{"id": "b"}\n{oops\n{"id": "a", "text": "again"}\n{"id": "e", "text": "two"}\r\n'
)


def test_a_bad_line_is_named_and_nothing_is_kept(refuses: Refuses, client: TestClient) -> None:
    client.put("/corpora/c")
    media = {"content-type": "application/x-ndjson"}
    refuses(
        (422, "Validation", "line 3.text: is required"),
        "POST",
        "/corpora/c/documents",
        content=NDJSON,
        headers=media,
    )
    refuses(
        (400, "Validation", "line 1: not JSON"),
        "POST",
        "/corpora/c/documents",
        content=b"{oops\n",
        headers=media,
    )
    assert client.get("/corpora/c").json()["documents"] == 0


@pytest.mark.parametrize(
    "body", [b'[{"text": "a"}]', b'{"documents": [{"text": "a"}]}', b'[\n{"text": "a"}\n]', b'{\n"documents": []}']
)
def test_json_that_is_sent_as_lines_is_told_its_type(refuses: Refuses, client: TestClient, body: bytes) -> None:
    client.put("/corpora/c")
    says = "line 1: must be a document, as a JSON object on one line; for a list of documents, or for JSON over"
    sent = {"content": body, "headers": {"content-type": "application/x-ndjson"}}
    refuses((422, "Validation", says), "POST", "/corpora/c/documents", **sent)


@pytest.mark.parametrize("skip", ["skip", "SKIP"])
def test_bad_lines_can_be_skipped(client: TestClient, skip: str) -> None:
    client.put("/corpora/c")
    answer = client.post(
        f"/corpora/c/documents?on_error={skip}", content=NDJSON, headers={"content-type": "application/x-ndjson"}
    )
    body = answer.json()
    assert (answer.status_code, body["ids"], body["count"]) == (200, ["a", "e"], 2)
    assert [error["place"] for error in body["errors"]] == ["line 3", "line 4", "line 5"]
    assert "already the id of line 1" in body["errors"][2]["error"]


SEARCHES = [
    ((422, "Validation", "query: give exactly one of"), {}),
    ((422, "Validation", "vector: dense search needs either query or vector"), {"query": "a", "vector": [1.0]}),
    ((400, "Empty", "queries: must contain"), {"queries": []}),
    ((422, "Validation", "queries.1: "), {"queries": ["a", 1]}),
    ((422, "Validation", "vector.1: "), {"vector": [1.0, float("nan")]}),
    ((422, "Validation", "vector.0: "), {"vector": [float("inf")]}),
    ((422, "Validation", "vector.0: "), {"vector": ["a"]}),
    ((422, "Validation", "vector: has no direction"), {"vector": [0.0] * 64}),
    ((422, "Validation", "vector.0: "), {"vector": ["1"]}),
    ((422, "Validation", "vector.1: "), {"vector": [1, True]}),
    ((422, "Validation", "vector: must have at most 65536 items"), {"vector": [1.0] * 65_537}),
    ((422, "Validation", "vector: has no direction"), {"vector": []}),
    ((422, "Validation", "vector: 3 numbers"), {"vector": [1.0, 2.0, 3.0]}),
    ((422, "Validation", "k: must be greater than or equal to 1"), {"query": "a", "k": 0}),
    ((422, "Validation", "k: must be an integer"), {"query": "a", "k": "3"}),
    ((422, "Validation", "offset: "), {"query": "a", "offset": -1}),
    ((413, "Validation", "queries: 3000 texts"), {"queries": [1] * 3000}),
    ((413, "Validation", "k: the request asks for 10011 hits"), {"query": "a", "offset": 10_001}),
    ((413, "Validation", "k: the request asks for 12000 hits"), {"queries": ["a"] * 100, "k": 100, "offset": 20}),
    ((422, "Validation", "mode: must be 'dense', 'lexical' or 'hybrid'"), {"query": "a", "mode": "psychic"}),
    ((422, "Validation", "filter: must be an object"), {"query": "a", "filter": [1]}),
    ((422, "Validation", "filter.\\ud800: not valid Unicode"), {"query": "a", "filter": {"\ud800": {"$foo": 1}}}),
    ((422, "Validation", "filter.n.$\\ud800: unknown"), {"query": "a", "filter": {"n": {"$\ud800": 1}}}),
    ((422, "Validation", "like.positive: not valid Unicode"), {"like": {"positive": ["\ud800"]}}),
    ((422, "Validation", "like.negative: not"), {"like": {"positive": ["a"], "negative": ["\ud800"]}}),
    ((422, "Validation", "filter.n.$regex: unknown operator"), {"query": "a", "filter": {"n": {"$regex": "x"}}}),
    ((422, "Validation", "filter.$and.0.n.$gt: must be"), {"query": "a", "filter": {"$and": [{"n": {"$gt": None}}]}}),
]


@pytest.mark.parametrize(("refusal", "body"), SEARCHES)
@pytest.mark.parametrize("path", ["/corpora/c/search", "/search"])
def test_search(refuses: Refuses, client: TestClient, path: str, refusal: Refusal, body: Any) -> None:
    client.put("/corpora/c")
    client.post("/corpora/c/documents", json={"documents": [{"text": "a"}]})
    named = body if "name" in path else {"corpus": "c", **body}
    refuses(refusal, "POST", path, content=json.dumps(named), headers=JSON)


@pytest.mark.parametrize(
    ("refusal", "body"),
    [
        ((422, "Validation", "ids: not valid Unicode"), {"ids": ["a", "\ud800"], "metadata": {"n": 2}}),
        ((422, "Validation", "metadata.n: integers must be"), {"ids": ["a"], "metadata": {"n": 2**64}}),
    ],
)
def test_a_patch_and_nothing_is_changed(refuses: Refuses, client: TestClient, refusal: Refusal, body: Any) -> None:
    client.put("/corpora/c")
    client.post("/corpora/c/documents", json=[{"id": "a", "text": "a", "metadata": {"n": 1}}])
    refuses(refusal, "PATCH", "/corpora/c/documents", content=json.dumps(body), headers=JSON)
    assert client.get("/corpora/c/documents/a").json()["metadata"] == {"n": 1}


def test_an_integer_that_json_would_lose() -> None:
    assert unwritable({"n": 2**64 - 1}) is None
    assert unwritable({"n": [2**64]}) == "integers must be from -2^63 to 2^64 - 1"
