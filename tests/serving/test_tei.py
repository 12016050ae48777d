"""Tests of text-embeddings-inference's routes and headers, and of /embed and /similarity."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from models.bundle.tokenizer import Tokens
from serving.app import create_app
from serving.inference.engine import Embedded
from serving.inference.fake_engine import DIM, END, START, FakeEngine
from serving.service import Service
from tests.serving.engines import model

Refuses = Callable[..., None]
TIMES = ("x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time")
PIPELINE = "/models/fake/pipeline"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", {"inputs": ["a b", "c"]}),
        ("/", {"inputs": ["a b", "c"]}),
        ("/invocations", {"inputs": ["a b", "c"]}),
        (f"{PIPELINE}/feature-extraction", {"inputs": ["a b", "c"]}),
        ("/v1/embeddings", {"input": ["a b", "c"]}),
        ("/openai/deployments/fake/embeddings", {"input": ["a b", "c"]}),
        ("/v2/embed", {"texts": ["a b", "c"]}),
        ("/api/embed", {"model": "fake", "input": ["a b", "c"]}),
        ("/similarity", {"inputs": {"source_sentence": "a b", "sentences": ["c"]}}),
        (f"{PIPELINE}/sentence-similarity", {"inputs": {"source_sentence": "a b", "sentences": ["c"]}}),
        ("/rerank", {"query": "a b", "texts": ["c"], "prompt": ""}),
    ],
)
def test_headers_say_what_was_computed_and_for_how_long(client: TestClient, path: str, body: Any) -> None:
    headers = client.post(path, json=body).headers
    assert (headers["x-compute-type"], headers["x-compute-characters"], headers["x-compute-tokens"]) == (
        "cpu",
        "4",
        "7",
    )
    total, *parts = (int(headers[name]) for name in TIMES[1:])
    assert int(headers["x-compute-time"]) == total
    assert abs(total - sum(parts)) <= len(parts), "of whole milliseconds, each rounded"
    assert headers["x-truncated-inputs"] == "0"


def test_invocations_and_pipelines_answer_as_their_own_routes(client: TestClient) -> None:
    texts = {"inputs": ["a b", "c"], "dimensions": 8}
    pair = {"inputs": {"source_sentence": "a b", "sentences": ["a c"]}}
    vectors, cosines = client.post("/embed", json=texts).json(), client.post("/similarity", json=pair).json()
    assert np.shape(vectors) == (2, 8)
    for path, body, answer in [
        ("/invocations", texts, vectors),
        ("/invocations", pair, cosines),
        (f"{PIPELINE}/feature-extraction", texts, vectors),
        (f"{PIPELINE}/sentence-similarity", pair, cosines),
    ]:
        assert client.post(path, json=body).json() == answer, path


def test_a_pipeline_of_another_model_is_not_found(refuses: Refuses) -> None:
    for task, body in (("feature-extraction", {"inputs": "a"}), ("sentence-similarity", {"inputs": {}})):
        refuses((404, "NotFound", "no model 'org/other'"), "POST", f"/models/org/other/pipeline/{task}", json=body)


def test_a_pipeline_refuses_as_its_own_route(refuses: Refuses) -> None:
    refuses((422, "Validation", "inputs: "), "POST", f"{PIPELINE}/feature-extraction", json={"inputs": 7})
    refuses((400, "Empty", "inputs: "), "POST", f"{PIPELINE}/feature-extraction", json={"inputs": []})
    body = {"inputs": {"source_sentence": "a"}}
    refuses((422, "Validation", "inputs.sentences: "), "POST", f"{PIPELINE}/sentence-similarity", json=body)


@pytest.mark.parametrize("path", ["/models/org/other/report", "/modelsfoo"])
def test_a_report_and_an_unknown_path_refuse_in_the_native_format(refuses: Refuses, path: str) -> None:
    refuses((404, "NotFound", ""), "GET", path)


def test_token_ids_are_embedded_as_they_are(client: TestClient) -> None:
    (pieces,) = client.post("/tokenize", json={"inputs": "one two"}).json()
    ids = [piece["id"] for piece in pieces]
    expected = client.post("/embed", json={"inputs": "one two"}).json()
    assert client.post("/embed", json={"inputs": ids}).json() == expected
    assert client.post("/embed", json={"inputs": [ids, ids]}).json() == expected * 2
    without = client.post("/embed", json={"inputs": ids[1:-1]}).json()
    assert without != expected, "no special tokens are put around them"


def test_token_ids_are_cut_on_either_side_and_that_is_told(client: TestClient) -> None:
    ids = list(range(2, 202))
    for direction, kept in (("right", ids[:128]), ("left", ids[-128:])):
        answer = client.post("/embed", json={"inputs": ids, "truncation_direction": direction})
        assert answer.headers["x-truncated-inputs"] == "1"
        assert answer.json() == client.post("/embed", json={"inputs": kept}).json()


@pytest.mark.parametrize("sentences", [["a c"], "a c"])
def test_one_sentence_is_a_list_of_one(client: TestClient, sentences: Any) -> None:
    one = client.post("/similarity", json={"inputs": {"source_sentence": "a b", "sentences": sentences}})
    many = client.post("/similarity", json={"inputs": {"sentences_a": "a b", "sentences_b": sentences}})
    assert np.shape(one.json()) == (1,)
    assert many.json() == [one.json()]


def test_similarity_names_the_sentence_at_fault(refuses: Refuses) -> None:
    long = "a " * 200
    for inputs, field in (
        ({"source_sentence": long, "sentences": ["a"]}, "inputs.source_sentence: 202 tokens"),
        ({"source_sentence": "a", "sentences": ["a", long]}, "inputs.sentences.1: 202 tokens"),
        ({"sentences_a": ["a", long], "sentences_b": ["a"]}, "inputs.sentences_a.1: 202 tokens"),
        ({"sentences_a": ["a"], "sentences_b": ["a", long]}, "inputs.sentences_b.1: 202 tokens"),
    ):
        body = {"inputs": inputs, "parameters": {"truncate": False}}
        refuses((413, "Validation", field), "POST", "/similarity", json=body)


def test_similarity_takes_as_many_sentences_as_the_server_says_beside_their_source(client: TestClient) -> None:
    most = client.get("/info").json()["max_client_batch_size"]
    inputs = {"source_sentence": "a", "sentences": ["a"] * most}
    assert len(client.post("/similarity", json={"inputs": inputs}).json()) == most
    pairs = {"sentences_a": ["a"], "sentences_b": ["a"] * most}
    assert client.post("/similarity", json={"inputs": pairs}).status_code == 413


def test_tokenize(client: TestClient) -> None:
    one, two = client.post("/tokenize", json={"inputs": ["Hello, you", ""]}).json()
    first, *words, last = one
    assert first == {"id": START, "text": "<s>", "special": True, "start": None, "stop": None}
    assert (last["id"], last["special"]) == (END, True)
    assert [(word["text"], word["start"], word["stop"], word["special"]) for word in words] == [
        ("Hello", 0, 5, False),
        (",", 5, 6, False),
        ("you", 7, 10, False),
    ]
    assert two == [first, last]
    bare = client.post("/tokenize", json={"inputs": "Hello, you", "add_special_tokens": False}).json()
    assert bare == [words]


def test_tokenize_shows_the_prompt_and_cuts_nothing(client: TestClient) -> None:
    (pieces,) = client.post("/tokenize", json={"inputs": "a " * 500, "prompt_name": "query"}).json()
    assert [piece["text"] for piece in pieces[1:4]] == ["query", ":", "a"]
    assert len(pieces) == 504


def test_decode(client: TestClient) -> None:
    assert client.post("/decode", json={"ids": [START, 5, 6, END]}).json() == ["#5 #6"]
    both = {"ids": [[START, 5], [7]], "skip_special_tokens": False}
    assert client.post("/decode", json=both).json() == [f"#{START} #5", "#7"]


@pytest.mark.parametrize(
    ("refusal", "path", "body"),
    [
        ((400, "Empty", "inputs: must contain"), "/tokenize", {"inputs": []}),
        ((422, "Validation", "inputs: "), "/tokenize", {}),
        ((422, "Validation", "inputs.0: not valid Unicode"), "/tokenize", {"inputs": ["\ud800"]}),
        ((422, "Validation", "prompt_name: the model has no prompt"), "/tokenize", {"inputs": "a", "prompt_name": "x"}),
        ((413, "Validation", "inputs: more than the 300000 tokens"), "/tokenize", {"inputs": ["a " * 160_000] * 2}),
        ((400, "Tokenizer", "ids.1: token id 8192 is outside"), "/decode", {"ids": [[5], [8192]]}),
        ((400, "Tokenizer", "ids.0: token id -1"), "/decode", {"ids": [-1]}),
        ((400, "Empty", "ids: must contain at least one token id"), "/decode", {"ids": []}),
        ((400, "Empty", "ids.0: must contain"), "/decode", {"ids": [[]]}),
        ((422, "Validation", "ids"), "/decode", {"ids": ["a"]}),
        ((422, "Validation", "ids"), "/decode", {"ids": "a"}),
        ((413, "Validation", "ids: 300001 token ids"), "/decode", {"ids": [1] * 300_001}),
        ((400, "Empty", "texts: must contain"), "/rerank", {"query": "a", "texts": []}),
        ((422, "Validation", "query: "), "/rerank", {"texts": ["a"]}),
        ((422, "Validation", "texts: "), "/rerank", {"query": "a"}),
        ((422, "Validation", "texts.1: "), "/rerank", {"query": "a", "texts": ["a", 1]}),
        ((413, "Validation", "texts: 3000 texts"), "/rerank", {"query": "a", "texts": [1] * 3000}),
        ((422, "Validation", "query: not valid Unicode"), "/rerank", {"query": "\ud800", "texts": ["a"]}),
        ((422, "Validation", "texts.1: not valid Unicode"), "/rerank", {"query": "a", "texts": ["a", "\ud800"]}),
    ],
)
def test_refusals(refuses: Refuses, refusal: tuple[int, str, str], path: str, body: Any) -> None:
    refuses(refusal, "POST", path, content=json.dumps(body), headers={"content-type": "application/json"})


def test_rerank_is_by_the_cosine_best_first(client: TestClient) -> None:
    texts = ["x y z", "a b c", "a b d", "x y z"]
    inputs = {"source_sentence": "a b c", "sentences": texts}
    cosines = client.post("/similarity", json={"inputs": inputs}).json()
    ranks = client.post("/rerank", json={"query": "a b c", "texts": texts, "prompt": ""}).json()
    assert [rank["index"] for rank in ranks] == [1, 2, 0, 3], "equals in the order of the request"
    assert [rank["score"] for rank in ranks] == pytest.approx([cosines[rank["index"]] for rank in ranks], abs=1e-6)
    assert all(set(rank) == {"index", "score"} for rank in ranks)


class LastBits(FakeEngine):
    """Engine whose vectors of a text differ in the last bits, as in batches of different shapes."""

    def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
        embedded = super().embed(batch, alone=alone)
        noise = np.random.default_rng(0).uniform(-1e-8, 1e-8, embedded.vectors.shape)
        embedded.vectors[:] += noise.astype(np.float32)
        return embedded


@pytest.mark.parametrize(
    ("path", "texts", "places"),
    [
        ("/rerank", "texts", lambda answer: answer),
        ("/v1/rerank", "documents", lambda answer: answer["results"]),
        ("/v2/rerank", "documents", lambda answer: answer["results"]),
    ],
)
def test_equal_texts_stay_in_the_order_of_the_request(
    make_service: Callable[..., Service],
    wait_until_ready: Callable[[TestClient], None],
    path: str,
    texts: str,
    places: Callable[[Any], Any],
) -> None:
    with TestClient(create_app(make_service(model(lambda _: LastBits())))) as client:
        wait_until_ready(client)
        answer = client.post(path, json={"query": "a b c", texts: ["a x", "a c"] * 30})
    ranks = places(answer.json())
    assert [one["index"] for one in ranks] == [*range(1, 60, 2), *range(0, 60, 2)]
    scores = [one.get("score", one.get("relevance_score")) for one in ranks]
    assert scores == [0.748687] * 30 + [0.547191] * 30


def test_rerank_returns_texts_and_sigmoids_to_those_who_ask(client: TestClient) -> None:
    body = {"query": "a b", "texts": ["c", "a b"], "return_text": True}
    raw = client.post("/rerank", json=body).json()
    assert [rank["text"] for rank in raw] == ["a b", "c"]
    squashed = client.post("/rerank", json={**body, "raw_scores": False}).json()
    assert [rank["score"] for rank in squashed] == pytest.approx([1 / (1 + np.exp(-rank["score"])) for rank in raw])


def test_rerank_takes_the_bundles_prompts_for_the_roles(client: TestClient) -> None:
    """Use the fake bundle, which has a prompt for queries and none for documents."""
    body = {"query": "a b", "texts": ["a b c", "query: a b"]}
    ranks = client.post("/rerank", json=body).json()
    assert (ranks[0]["index"], ranks[0]["score"]) == (1, pytest.approx(1, abs=1e-6))
    named = client.post("/rerank", json={**body, "prompt_name": "query"}).json()
    assert named[0]["score"] < 1 - 1e-3, "a prompt that is named stands before the texts, too"


def test_prompts(client: TestClient) -> None:
    def vectors(text: str, **options: Any) -> Any:
        return client.post("/embed", json={"inputs": text, **options}).json()

    assert vectors("a", prompt="say ") == vectors("say a") != vectors("a")
    assert vectors("a", prompt="") == vectors("a", prompt=None) == vectors("a")
    sent = {"input": "a", "prompt": "say "}
    assert client.post("/v1/embeddings", json=sent).json()["data"][0]["embedding"] == vectors("say a")[0]


def test_fewer_dimensions_warn_where_the_encoder_was_not_trained_for_them(client: TestClient) -> None:
    for path, body in (("/embed", {"inputs": "a"}), ("/v1/embeddings", {"input": "a"})):
        cut = client.post(path, json={**body, "dimensions": 8})
        assert cut.headers["x-embedding-warning"] == "not-matryoshka"
        for whole in ({}, {"dimensions": DIM}, {"dimensions": None}):
            assert "x-embedding-warning" not in client.post(path, json={**body, **whole}).headers
