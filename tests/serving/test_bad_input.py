"""Tests of every kind of invalid request: status, kind and field are as in the contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from serving.api.routing.route import LONGEST_TYPE
from serving.api.schemas.bodies import Body, EmbedRequest, SimilarityRequest
from serving.api.schemas.cohere import CohereEmbedRequest
from serving.api.schemas.corpora import PatchRequest
from serving.api.schemas.openai import OpenAIEmbeddingsRequest
from serving.api.schemas.search import SearchRequest

JSON = {"content-type": "application/json"}
Refusal = tuple[int, str, str]
"""Status, kind, and a part of the message."""
Refuses = Callable[..., None]


@pytest.mark.parametrize(
    ("refusal", "body"),
    [
        ((400, "Empty", "inputs: must contain"), {"inputs": []}),
        ((422, "Validation", "inputs: is required"), {}),
        ((422, "Validation", "inputs: is required"), {"inputs": None}),
        ((422, "Validation", "inputs: must be a text, a list of texts, a list of token ids"), {"inputs": 7}),
        ((422, "Validation", "inputs.1: "), {"inputs": ["a", 7]}),
        ((422, "Validation", "inputs.0: "), {"inputs": ["\ud800"]}),
        ((413, "Validation", "inputs: 2049 texts are more than the 2048"), {"inputs": ["a"] * 2049}),
        ((413, "Validation", "inputs.1: 1000000 bytes"), {"inputs": ["a", "a" * 1_000_000]}),
        (
            (413, "Validation", "inputs.1: 202 tokens are more than the model's 128"),
            {"inputs": ["a", "a " * 200], "truncate": False},
        ),
        ((422, "Validation", "truncation_direction: "), {"inputs": "a", "truncation_direction": "up"}),
        ((422, "Validation", "encoding_format: "), {"inputs": "a", "encoding_format": "hex"}),
        ((422, "Validation", "dimensions: must be between 1 and 64"), {"inputs": "a", "dimensions": 0}),
        ((422, "Validation", "dimensions: must be between 1 and 64"), {"inputs": "a", "dimensions": 65}),
        ((422, "Validation", "prompt_name: the model has no prompt 'x'"), {"inputs": "a", "prompt_name": "x"}),
        (
            (422, "Validation", "prompt: give only one of prompt"),
            {"inputs": "a", "prompt_name": "query", "prompt": "b"},
        ),
        ((413, "Validation", "prompt: 10001 bytes"), {"inputs": "a", "prompt": "b" * 10_001}),
        ((422, "Validation", "prompt: not valid Unicode"), {"inputs": "a", "prompt": "\ud800"}),
        ((422, "Validation", "prompt: can't be combined with token ids"), {"inputs": [5], "prompt": "a"}),
        ((422, "Validation", "prompt_name: can't be combined with"), {"inputs": [[5]], "prompt_name": "query"}),
        ((400, "Tokenizer", "inputs.1: token id 8192 is outside"), {"inputs": [[5], [8192]]}),
        ((422, "Validation", "normalize: "), {"inputs": "a", "normalize": "off"}),
        ((422, "Validation", "dimensions: "), {"inputs": "a", "dimensions": "8"}),
        ((413, "Validation", "inputs: 300001 token ids"), {"inputs": [1] * 300_001}),
        ((422, "Validation", "body: "), ["a"]),
    ],
)
@pytest.mark.parametrize("path", ["/embed", "/"])
def test_embed(refuses: Refuses, path: str, refusal: Refusal, body: Any) -> None:
    refuses(refusal, "POST", path, content=json.dumps(body), headers=JSON)


@pytest.mark.parametrize(
    ("refusal", "inputs"),
    [
        ((400, "Empty", "inputs.sentences: must contain"), {"source_sentence": "a", "sentences": []}),
        ((400, "Empty", "inputs.sentences_b: must contain"), {"sentences_a": ["a"], "sentences_b": []}),
        ((422, "Validation", "inputs.sentences: "), {"source_sentence": "a"}),
        ((422, "Validation", "inputs.sentences.1: "), {"source_sentence": "a", "sentences": ["a", 1]}),
        ((413, "Validation", "inputs.sentences: 3000"), {"source_sentence": "a", "sentences": [1] * 3000}),
        ((413, "Validation", "inputs.sentences_a: 3000"), {"sentences_a": [1] * 3000, "sentences_b": [1]}),
        ((413, "Validation", "inputs.sentences_b: 3000"), {"sentences_a": [1], "sentences_b": [1] * 3000}),
    ],
)
@pytest.mark.parametrize("path", ["/similarity", "/"])
def test_similarity(refuses: Refuses, path: str, refusal: Refusal, inputs: Any) -> None:
    refuses(refusal, "POST", path, json={"inputs": inputs})


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (EmbedRequest, {"inputs": ["a", *[1] * 9]}),
        (SimilarityRequest, {"inputs": {"source_sentence": "a", "sentences": [1] * 9}}),
        (SimilarityRequest, {"inputs": {"sentences_a": ["a"], "sentences_b": [1] * 9}}),
        (OpenAIEmbeddingsRequest, {"input": ["a", *[1] * 9]}),
        (OpenAIEmbeddingsRequest, {"input": [1, *["a"] * 9]}),
        (OpenAIEmbeddingsRequest, {"input": [["a"] * 9] * 9}),
        (SearchRequest, {"queries": [1] * 9}),
        (SearchRequest, {"vector": ["1"] * 9}),
        (PatchRequest, {"ids": [True] * 9}),
        (CohereEmbedRequest, {"texts": "a", "embedding_types": ["x"] * 9}),
    ],
)
def test_a_list_is_checked_up_to_its_first_bad_element(model: type[Body], body: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    assert refused.value.error_count() == 1


@pytest.mark.parametrize(
    ("refusal", "content", "media"),
    [
        ((400, "Validation", "not JSON"), b"{", "application/json"),
        ((400, "Validation", "not JSON"), b"\xff", "application/json"),
        ((400, "Validation", "not JSON"), '{"inputs": "a"}'.encode("utf-16"), "application/json"),
        ((400, "Validation", "not JSON"), b"[" * 100_000, "application/json"),
        ((400, "Validation", "empty"), b"", "application/json"),
        ((415, "Validation", "text/csv"), b"inputs", "text/csv"),
        ((413, "Validation", "at most 32000000"), b" " * 32_000_001, "application/json"),
    ],
)
def test_bodies(refuses: Refuses, refusal: Refusal, content: bytes, media: str) -> None:
    refuses(refusal, "POST", "/embed", content=content, headers={"content-type": media})


def test_a_body_without_a_length_is_bounded_while_it_is_read(refuses: Refuses) -> None:
    chunks = (b" " * 1_000_000 for _ in range(40))
    refuses((413, "Validation", "more than the 32000000"), "POST", "/embed", content=chunks, headers=JSON)


@pytest.mark.parametrize(
    ("refusal", "says", "body"),
    [
        ((400, "empty", "input"), "must contain", {"input": []}),
        ((400, "empty", "input.1"), "must contain", {"input": [[5], []]}),
        ((400, "tokenizer", "input.0"), "check_embedding_ctx_length=False", {"input": [[99_999]]}),
        ((400, "tokenizer", "input.0"), "token id -1", {"input": [-1]}),
        ((422, "validation", "input"), "", {}),
        ((422, "validation", "input.1"), "", {"input": ["a", 1]}),
        ((422, "validation", "input.0.1"), "", {"input": [[1, "a"]]}),
        ((422, "validation", "dimensions"), "between 1 and 64", {"input": "a", "dimensions": 100}),
        ((422, "validation", "input.0"), "must be a string", {"input": [True]}),
        ((422, "validation", "input"), "must be a text, a list of texts, a list of token ids", {"input": True}),
        ((422, "validation", "input.0.0"), "must be an integer from -2^63 to 2^64 - 1", {"input": [10**20]}),
        ((422, "validation", "input.0.1"), "must be an integer from -2^63 to 2^64 - 1", {"input": [[1, 10**20]]}),
        ((422, "validation", "input.0.0"), "", {"input": [["5"]]}),
        ((422, "validation", "input.0.0"), "", {"input": [[2**64]]}),
        ((413, "validation", "input"), "2049 texts", {"input": ["a"] * 2049}),
        ((413, "validation", "input"), "2049 texts", {"input": [["a"]] * 2049}),
        ((413, "validation", "input"), "300001 token ids", {"input": [1] * 300_001}),
        ((413, "validation", "input"), "300001 token ids", {"input": [[1] * 300_000, ["a"]]}),
    ],
)
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
def test_openai(client: TestClient, path: str, refusal: Refusal, says: str, body: Any) -> None:
    answer = client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == refusal, answer.text
    assert set(error) == {"message", "type", "param", "code"}
    assert says in error["message"]


def test_openai_unknown_model(client: TestClient) -> None:
    answer = client.get("/v1/models/gpt-5")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/corpora/nope", "/corpora/nope/documents", "/corpora/nope/documents/a"])
def test_unknown_corpus(refuses: Refuses, path: str) -> None:
    refuses((404, "NotFound", "'nope'"), "GET", path)


def test_unknown_corpus_elsewhere(refuses: Refuses) -> None:
    refuses((404, "NotFound", "'nope'"), "DELETE", "/corpora/nope")
    refuses((404, "NotFound", "'nope'"), "POST", "/search", json={"corpus": "nope", "query": "a"})
    refuses((404, "NotFound", "'nope'"), "POST", "/corpora/nope/documents", json={"documents": [{"text": "a"}]})
    refuses((404, "NotFound", "/nowhere"), "GET", "/nowhere")
    refuses((405, "Validation", "Method Not Allowed"), "DELETE", "/embed")


@pytest.mark.parametrize(
    "name", ["%2e%2e", "..%2fx", "%2e%2e/x", ".hidden", "a%00b", "a%20b", "é", "a" * 65, "-a", "a%0a"]
)
def test_bad_corpus_names_never_reach_the_disk(refuses: Refuses, tmp_path: Any, name: str) -> None:
    before = set(tmp_path.parent.rglob("*"))
    refuses((422, "Validation", "is not a corpus name"), "PUT", f"/corpora/{name}")
    assert set(tmp_path.parent.rglob("*")) <= before  # Corpora of other tests may be removed meanwhile.


def test_a_bad_corpus_name_in_a_body(refuses: Refuses) -> None:
    refuses((422, "Validation", "corpus: '../x'"), "POST", "/search", json={"corpus": "../x", "query": "a"})


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/corpora/c/search", {"query": "a", "filters": {"tenant": "a"}}),
        ("POST", "/search", {"corpus": "c", "query": "a", "filters": {}}),
        ("PUT", "/corpora/c", {"recal_target": 0.99}),
        ("DELETE", "/corpora/c/documents", {"filter": {"a": 1}, "dry_run": True}),
        ("POST", "/corpora/c/reembed", {"encoder": "b"}),
        ("PUT", "/corpora/c/restore", {"snapshot": "s", "from": "d"}),
    ],
)
def test_a_field_that_is_none_is_named(
    refuses: Refuses, client: TestClient, method: str, path: str, body: dict[str, Any]
) -> None:
    client.put("/corpora/c")
    stray = list(body)[-1]
    refuses((422, "Validation", f"{stray}: is not a field of this request; its fields are"), method, path, json=body)
    refuses((422, "Validation", f"{stray}: is not a field"), method, path, json=body | {stray: None})
    assert "is not a field" not in client.request(method, path, json=dict(list(body.items())[:-1])).text


def test_a_search_of_a_path_may_name_its_corpus_again_and_no_other(refuses: Refuses, client: TestClient) -> None:
    client.put("/corpora/c")
    assert client.post("/corpora/c/search", json={"query": "a", "corpus": "c"}).status_code == 200
    other = {"query": "a", "corpus": "d"}
    refuses((422, "Validation", "corpus: is not 'c', the corpus in the path"), "POST", "/corpora/c/search", json=other)


@pytest.mark.parametrize(
    ("method", "path", "there"),
    [
        ("POST", "/corpora/c/documents?chunk_token=16&on_error=skip", "only async, on_error, text_column"),
        ("GET", "/corpora/c/documents?chunk_token=1", "only limit, cursor"),
        ("POST", "/corpora/c/search?chunk_token=1", "which has none"),
        ("POST", "/corpora/c/snapshots?chunk_token=1", "which has none"),
        ("PUT", "/corpora/c/restore?chunk_token=1", "which has none"),
        ("GET", "/jobs?chunk_token=1", "only corpus, limit, cursor"),
    ],
)
def test_a_parameter_that_is_none_is_named(
    refuses: Refuses, client: TestClient, method: str, path: str, there: str
) -> None:
    client.put("/corpora/c")
    body = {"json": {"documents": [{"text": "a"}]}} if method == "POST" and "snapshots" not in path else {}
    refuses((422, "Validation", f"chunk_token: is not a parameter of this route, {there}"), method, path, **body)


def test_a_repeated_parameter_is_refused(refuses: Refuses, client: TestClient) -> None:
    client.put("/corpora/c")
    twice = {"filter": ['{"n": 1}', '{"s": "a"}'], "limit": 0}
    refuses((422, "Validation", "filter: is given 2 times"), "GET", "/corpora/c/documents", params=twice)
    refuses(
        (422, "Validation", "on_error: is given 2 times"),
        "POST",
        "/corpora/c/documents?on_error=fail&on_error=skip",
        json=[{"text": "a"}],
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/corpora/c"),
        ("DELETE", "/corpora/c/documents/a"),
        ("GET", "/corpora/c/documents"),
        ("POST", "/corpora/c/snapshots"),
        ("POST", "/admin/reload"),
    ],
)
def test_a_route_without_a_body_refuses_one(client: TestClient, method: str, path: str) -> None:
    client.put("/corpora/c")
    client.post("/corpora/c/documents", json=[{"id": "a", "text": "a"}])
    answer = client.request(method, path, json={"filter": {"year": 1}})
    assert (answer.status_code, answer.json()["error"][:5]) == (422, "body:"), answer.text
    assert client.get("/corpora/c/documents").json()["count"] == 1
    assert "body:" not in client.request(method, path, json={}).text


@pytest.mark.parametrize(
    "path",
    [
        "search?q=a&mode=LEXICAL",
        "search?q=a&mode=Hybrid&sort=year:DESC",
        "documents?sort=year:Asc",
        "map?projection=PCA",
    ],
)
def test_enum_values_of_an_address_may_be_in_upper_case(client: TestClient, path: str) -> None:
    client.put("/corpora/c")
    client.post("/corpora/c/documents", json=[{"id": "a", "text": "a", "year": 1}])
    answer = client.get(f"/corpora/c/{path}")
    assert answer.status_code == 200, answer.text


def test_a_stray_field_is_told_with_those_there_are(client: TestClient) -> None:
    client.put("/corpora/c")
    said = client.post("/corpora/c/search", json={"query": "a", "top_k": 5}).json()["error"]
    assert said.startswith(
        "top_k: is not a field of this request; its fields are query, queries, vector, like, k, offset, mode"
    )
    unnamed = client.post("/corpora/c/search", json={"query": "a", "": 5}).json()["error"]
    assert unnamed.startswith("'': is not a field")
    body = b'{"query": "a", "\\ud800' + b"x" * 10_000 + b'": 5}'
    long = client.post("/corpora/c/search", content=body, headers=JSON)
    assert long.status_code == 422 and len(long.text) < 500


def test_other_bad_values(refuses: Refuses, client: TestClient) -> None:
    client.put("/corpora/c")
    refuses(
        (422, "Validation", "filter: would match every document"),
        "DELETE",
        "/corpora/c/documents",
        json={"filter": {}},
    )
    empties: tuple[Any, ...] = ({"$and": [{}]}, {"$not": {}}, {"$or": [{"$and": [{}]}]})
    for empty in empties:
        refuses((422, "Validation", "match every document"), "DELETE", "/corpora/c/documents", json={"filter": empty})
    refuses((422, "Validation", "cursor: not a cursor"), "GET", "/corpora/c/documents?cursor=x")
    refuses((422, "Validation", "limit: "), "GET", "/corpora/c/documents?limit=-1")
    refuses((422, "Validation", "filter: not JSON"), "GET", "/corpora/c/documents?filter=year:1")
    refuses((422, "Validation", "filter: must be an object"), "GET", "/corpora/c/documents?filter=[]")
    refuses((422, "Validation", "recall_target: "), "PUT", "/corpora/c", json={"recall_target": 2})
    refuses((422, "Validation", "id: must not contain NUL"), "GET", "/corpora/c/documents/%00")
    refuses((404, "NotFound", "no document 'x'"), "DELETE", "/corpora/c/documents/x")
    refuses((422, "Validation", "id: must not be '..'"), "DELETE", "/corpora/c/documents/%2E%2E")


@pytest.mark.parametrize("path", ["/embed", "/", "/similarity", "/corpora/c/search"])
@pytest.mark.parametrize("body", [["a"], 1, "a", None])
def test_a_body_that_is_no_object_is_told_so_without_a_name_of_ours(refuses: Refuses, path: str, body: Any) -> None:
    refuses((422, "Validation", "body: must be a JSON object"), "POST", path, content=json.dumps(body), headers=JSON)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/corpora/c/search"), ("POST", "/search"), ("DELETE", "/corpora/c/documents")]
)
def test_json_that_is_not_called_so_is_told_what_is_missing(refuses: Refuses, method: str, path: str) -> None:
    refuses(
        (415, "Validation", "content-type: is missing: this route reads application/json"), method, path, content=b"{}"
    )


@pytest.mark.parametrize(
    ("path", "sent"), [("/embed", {"inputs": "a"}), ("/corpora/c/documents", {"documents": [{"text": "a"}]})]
)
def test_a_content_type_is_not_longer_than_can_be_parsed(
    refuses: Refuses, client: TestClient, path: str, sent: dict[str, Any]
) -> None:
    client.put("/corpora/c")
    most = "application/json".ljust(LONGEST_TYPE, ";")
    says = "content-type: is longer than 1000 characters"
    refuses((415, "Validation", says), "POST", path, json=sent, headers={"content-type": f"{most};"})
    answer = client.post(path, json=sent, headers={"content-type": most})
    assert answer.status_code == 200, answer.text


def test_a_bug_is_json_too(refuses: Refuses, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("serving.service.Service.embed", broken)
    refuses((500, "Backend", "internal error"), "POST", "/embed", json={"inputs": "a"})


def test_nul_in_a_text_is_fine(client: TestClient) -> None:
    assert client.post("/embed", json={"inputs": "a\0b"}).status_code == 200
