"""Tests of the table in docs/clients.md: the effect of each field of other APIs."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from serving.inference.fake_engine import DIM

EMBED, COHERE, RERANK = "/v1/embeddings", "/v2/embed", "/v2/rerank"
OLLAMA, PROMPT = "/api/embed", "/api/embeddings"
TEXTS = ["a b c", "x y"]
LONG = ["left " * 126 + "right " * 126]
PLAIN: dict[str, dict[str, Any]] = {
    EMBED: {"input": TEXTS},
    COHERE: {"texts": TEXTS},
    RERANK: {"query": "a b c", "documents": ["x y z", "a b c", "a b d"]},
    OLLAMA: {"model": "fake", "input": TEXTS},
    PROMPT: {"model": "fake", "prompt": "a b c"},
}
BLOCKS = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
HARMLESS: dict[str, Any] = {}
"""Body of an equal request without the field."""
Row = tuple[str, str, str]

# Each row has the sent fields, and an equal request or the status of a refusal that names the field.
CASES: dict[Row, list[tuple[dict[str, Any], dict[str, Any] | int]]] = {
    (EMBED, "all", "input"): [({"input": "a b c"}, {"input": ["a b c"]}), ({"input": [{"text": "a"}]}, 422)],
    (EMBED, "all", "model"): [({"model": "text-embedding-3-small"}, HARMLESS)],
    (EMBED, "all", "encoding_format"): [({"encoding_format": "FLOAT"}, HARMLESS), ({"encoding_format": "hex"}, 422)],
    (EMBED, "OpenAI, Azure, Jina, Gemini", "dimensions"): [({"dimensions": DIM}, HARMLESS), ({"dimensions": 0}, 422)],
    (EMBED, "OpenAI, Azure", "user"): [({"user": "me"}, HARMLESS)],
    (EMBED, "Azure, Voyage", "input_type"): [
        ({"input_type": "query"}, {"prompt_name": "query"}),
        ({"input_type": "document"}, HARMLESS),
        ({"input_type": "text"}, HARMLESS),
        ({"input_type": "image"}, 422),
        ({"input_type": "query", "input": [5]}, 422),
    ],
    (EMBED, "Jina", "task"): [
        ({"task": "retrieval.query"}, {"prompt_name": "query"}),
        ({"task": "text-matching"}, HARMLESS),
        ({"task": "painting"}, 422),
        ({"task": "retrieval.query", "input_type": "document"}, 422),
    ],
    (EMBED, "Jina", "embedding_type"): [
        ({"embedding_type": "ubinary"}, {"encoding_format": "ubinary"}),
        ({"embedding_type": ["base64"]}, {"encoding_format": "base64"}),
        ({"embedding_type": ["float", "binary"]}, 422),
    ],
    (EMBED, "Jina", "normalized"): [({"normalized": False}, {"normalize": False}), ({"normalized": True}, HARMLESS)],
    (EMBED, "Jina", "truncate"): [({"input": LONG, "truncate": True}, {"input": LONG})],
    (EMBED, "Jina", "late_chunking"): [({"late_chunking": False}, HARMLESS), ({"late_chunking": True}, 422)],
    (EMBED, "Jina", "return_multivector"): [
        ({"return_multivector": False}, HARMLESS),
        ({"return_multivector": True}, 422),
    ],
    (EMBED, "Voyage", "truncation"): [({"truncation": True}, HARMLESS)],
    (EMBED, "Voyage, Mistral", "output_dimension"): [
        ({"output_dimension": 16}, {"dimensions": 16}),
        ({"output_dimension": 16, "dimensions": 16}, {"dimensions": 16}),
        ({"output_dimension": 16, "dimensions": 32}, 422),
        ({"output_dimension": DIM + 1}, 422),
    ],
    (EMBED, "Voyage, Mistral", "output_dtype"): [
        ({"output_dtype": "int8"}, {"encoding_format": "int8"}),
        ({"output_dtype": "float"}, HARMLESS),
        ({"output_dtype": "int4"}, 422),
        ({"output_dtype": "int8", "encoding_format": "uint8"}, 422),
    ],
    (EMBED, "Mistral", "metadata"): [({"metadata": {"a": 1}}, HARMLESS)],
    (EMBED, "Gemini", "outputDimensionality"): [({"outputDimensionality": 16}, 422)],
    (EMBED, "Gemini", "taskType"): [({"taskType": "RETRIEVAL_QUERY"}, 422)],
    (EMBED, "Gemini", "title"): [({"title": "A title"}, 422)],
    (EMBED, "Gemini", "autoTruncate"): [({"autoTruncate": True}, HARMLESS), ({"autoTruncate": False}, 422)],
    (COHERE, "Cohere", "texts"): [({"texts": "a b c"}, {"texts": ["a b c"]})],
    (COHERE, "Cohere", "inputs"): [({"texts": None, "inputs": BLOCKS}, HARMLESS)],
    (COHERE, "Cohere", "images"): [({"images": ["data:"]}, 422)],
    (COHERE, "Cohere", "model"): [({"model": "embed-v4.0"}, HARMLESS)],
    (COHERE, "Cohere", "input_type"): [({"input_type": "search_document"}, HARMLESS), ({"input_type": "image"}, 422)],
    (COHERE, "Cohere", "embedding_types"): [
        ({"embedding_types": ["float"]}, HARMLESS),
        ({"embedding_types": ["x"]}, 422),
    ],
    (COHERE, "Cohere", "output_dimension"): [({"output_dimension": DIM}, HARMLESS), ({"dimensions": 16}, 422)],
    (COHERE, "Cohere", "truncate"): [({"texts": LONG, "truncate": "END"}, {"texts": LONG})],
    (COHERE, "Cohere", "max_tokens"): [({"max_tokens": 128}, HARMLESS), ({"max_tokens": 5}, 422)],
    (COHERE, "Cohere", "priority"): [({"priority": 5}, HARMLESS)],
    (OLLAMA, "Ollama", "model"): [({"model": "fake:latest"}, HARMLESS), ({"model": "all-minilm"}, 404)],
    (OLLAMA, "Ollama", "input"): [({"input": "a b c"}, {"input": ["a b c"]}), ({"input": [5]}, 422)],
    (OLLAMA, "Ollama", "truncate"): [({"input": LONG, "truncate": True}, {"input": LONG})],
    (OLLAMA, "Ollama", "dimensions"): [({"dimensions": DIM}, HARMLESS), ({"dimensions": 0}, 422)],
    (OLLAMA, "Ollama", "options"): [
        ({"options": {"num_ctx": 8192, "num_gpu": 1, "seed": 1}}, HARMLESS),
        ({"options": {"num_ctx": 5}}, 422),
    ],
    (OLLAMA, "Ollama", "keep_alive"): [({"keep_alive": "5m"}, HARMLESS), ({"keep_alive": 0}, HARMLESS)],
    (PROMPT, "Ollama", "prompt"): [({"prompt": ["a b c"]}, 422)],
    (RERANK, "all", "query"): [({"query": 5}, 422)],
    (RERANK, "all", "documents"): [({"documents": [{"text": "x y z"}, "a b c", "a b d"]}, HARMLESS)],
    (RERANK, "all", "model"): [({"model": "rerank-v4.0"}, HARMLESS)],
    (RERANK, "all", "return_documents"): [({"return_documents": False}, HARMLESS)],
    (RERANK, "Cohere, Jina", "top_n"): [({"top_n": 50}, HARMLESS)],
    (RERANK, "Cohere", "max_tokens_per_doc"): [
        ({"max_tokens_per_doc": 4096}, HARMLESS),
        ({"max_tokens_per_doc": 0}, 422),
    ],
    (RERANK, "Cohere", "max_chunks_per_doc"): [({"max_chunks_per_doc": 1}, HARMLESS)],
    (RERANK, "Cohere", "rank_fields"): [({"rank_fields": ["text"]}, HARMLESS), ({"rank_fields": ["title"]}, 422)],
    (RERANK, "Cohere", "priority"): [({"priority": 5}, HARMLESS)],
    (RERANK, "Jina", "return_embeddings"): [
        ({"return_embeddings": False}, HARMLESS),
        ({"return_embeddings": True}, 422),
    ],
    (RERANK, "Voyage", "top_k"): [({"top_k": 2}, {"top_n": 2}), ({"top_k": 2, "top_n": 1}, 422)],
    (RERANK, "Voyage", "truncation"): [({"truncation": True}, HARMLESS)],
}


def vectors(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    answer = client.post(path, json=PLAIN[path] | body)
    assert answer.status_code == 200, answer.text
    return [answer.json().get(key) for key in ("data", "embeddings", "embedding", "texts", "results")]


@pytest.mark.parametrize("row", CASES, ids=" ".join)
def test_a_field_does_what_its_row_says(client: TestClient, row: Row) -> None:
    path, _, field = row
    for sent, expected in CASES[row]:
        if isinstance(expected, dict):
            assert vectors(client, path, sent) == vectors(client, path, expected), sent
            continue
        answer = client.post(path, json=PLAIN[path] | sent)
        assert answer.status_code == expected, answer.text
        assert any(name in answer.text for name in (field, *sent)), answer.text


def test_the_table_has_these_rows() -> None:
    text = Path("docs/clients.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `(/(?:v\d|api)/\w+)`[^|]*\| ([^|]+) \| `(\w+)` \| (?:honoured|ignored|refused)", text, re.MULTILINE
    )
    assert sorted(rows) == sorted(CASES)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (EMBED, {"input": LONG, "truncate": False}),
        (EMBED, {"input": LONG, "truncation": False}),
        (COHERE, {"texts": LONG, "truncate": "NONE"}),
        (OLLAMA, {"input": LONG, "truncate": False}),
        (RERANK, {"query": LONG[0], "truncation": False}),
        (RERANK, {"max_tokens_per_doc": 2, "truncation": False}),
    ],
)
def test_too_long_a_text_is_refused_where_it_must_not_be_cut(client: TestClient, path: str, body: Any) -> None:
    assert client.post(path, json=PLAIN[path] | body).status_code == 413


@pytest.mark.parametrize("kind", ["float", "int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("field", ["output_dtype", "embedding_type"])
def test_numbers_of_any_type_come_in_base64(client: TestClient, kind: str, field: str) -> None:
    """Request numbers as base64, as Voyage's client does."""
    asked = {"input": TEXTS, field: kind, "dimensions": 16}
    plain = client.post(EMBED, json=asked).json()["data"]
    packed = client.post(EMBED, json=asked | {"encoding_format": "base64"}).json()["data"]
    dtype = {"float": np.float32, "int8": np.int8, "binary": np.int8}.get(kind, np.uint8)
    for one, other in zip(packed, plain, strict=True):
        numbers = np.frombuffer(base64.b64decode(one["embedding"]), dtype)
        assert numbers.tolist() == pytest.approx(other["embedding"])
        assert len(numbers) == (2 if "binary" in kind else 16)


@pytest.mark.parametrize(
    "body", [{"output_dimension": 16}, {"output_dtype": "int8"}, {"late_chunking": True}, {"input_type": "query"}]
)
@pytest.mark.parametrize("path", ["/embed", "/"])
def test_what_embed_would_pass_over_is_refused_with_its_own_name(client: TestClient, path: str, body: Any) -> None:
    answer = client.post(path, json={"inputs": TEXTS} | body)
    assert answer.status_code == 422 and answer.json()["error"].startswith(f"{next(iter(body))}: is ")


PAIR = {"inputs": {"source_sentence": "a", "sentences": ["b"]}}
WITHOUT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (COHERE, PLAIN[COHERE], {"normalize": False, "prompt": "a ", "prompt_name": "query"}),
    (OLLAMA, PLAIN[OLLAMA], {"encoding_format": "base64", "normalize": False, "prompt": "a ", "prompt_name": "query"}),
    (PROMPT, PLAIN[PROMPT], {"dimensions": 3, "truncate": False, "title": "a"}),
    (RERANK, PLAIN[RERANK], {"method": "late_interaction", "input_type": "query", "truncation_direction": "left"}),
    (
        "/rerank",
        {"query": "a", "texts": ["a"]},
        {"truncation": False, "top_n": 1, "dimensions": 3, "rank_fields": ["a"]},
    ),
    ("/embed_all", {"inputs": "a"}, {"truncation": False, "output_dimension": 3, "title": "a"}),
    ("/similarity", PAIR, {"truncate": False, "prompt": "a ", "prompt_name": "query", "dimensions": 3}),
    ("/", PAIR, {"prompt_name": "query"}),
    ("/predict", {"inputs": ["a", "b"]}, {"truncation": False, "prompt": "a "}),
    ("/tokenize", {"inputs": "a"}, {"input_type": "query"}),
]


@pytest.mark.parametrize(("path", "body", "others"), WITHOUT)
def test_what_a_route_would_pass_over_is_refused(
    client: TestClient, path: str, body: dict[str, Any], others: dict[str, Any]
) -> None:
    for name, value in others.items():
        answer = client.post(path, json=body | {name: value})
        assert answer.status_code == 422 and f"{name}: is " in answer.text, answer.text
    defaults = {"normalize": path != "/embed_all", "truncate": True, "encoding_format": "FLOAT", "user": "me"}
    if path not in ("/predict", COHERE):
        assert client.post(path, json=body | defaults).status_code == 200


def test_what_the_parameters_of_similarity_would_pass_over_is_refused(client: TestClient) -> None:
    answer = client.post("/similarity", json=PAIR | {"parameters": {"input_type": "query"}})
    assert answer.status_code == 422 and "input_type: is called prompt_name" in answer.text


@pytest.mark.parametrize("path", [EMBED, "/embeddings", COHERE, RERANK, "/v1/models", "/corpora", "/jobs", "/docs"])
def test_a_slash_at_the_end_changes_nothing(client: TestClient, path: str) -> None:
    def ask(path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        answer = client.post(path, json=body) if body else client.get(path, follow_redirects=False)
        return answer.status_code, re.sub(rb'"id":"[0-9a-f-]{36}"', b"", answer.content)

    body = PLAIN.get("/v1/embeddings" if path == "/embeddings" else path)
    assert ask(f"{path}/", body) == ask(path, body)
    assert ask(path, body)[0] == 200


def test_a_slash_may_be_part_of_an_id(client: TestClient) -> None:
    client.put("/corpora/c/")
    documents = [{"id": "a/", "text": "with"}, {"id": "a", "text": "without"}]
    assert client.post("/corpora/c/documents/", json=documents).status_code == 200
    assert client.get("/corpora/c/documents/a/").json()["text"] == "with"
    assert len(client.get("/corpora/c/documents/").json()["documents"]) == 2
    assert client.post("/nowhere/").status_code == 404
    assert client.delete("/v1/embeddings/").status_code == 405
