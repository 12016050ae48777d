"""Tests of corpora with a bundle's prompts: documents and queries are embedded with the prompts for their roles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from models.__main__ import main as export
from serving.app import create_app
from serving.inference.engine import Model
from serving.inference.engines import ENGINES
from serving.inference.fake_engine import MAX_LENGTH
from tests.serving.conftest import MakeService
from tests.serving.corpora.ingest.uploading import ended
from tests.serving.shelf import embedded

TEXT = "the white whale"


def prompted(folder: Path, fingerprint: str = "fake-p", **prompts: str) -> Model:
    model = ENGINES["fake"](folder)
    return replace(model, manifest=replace(model.manifest, prompts=prompts, fingerprint=fingerprint))


@pytest.fixture
def serve(
    make_service: MakeService, tmp_path: Path, wait_until_ready: Callable[[TestClient], None]
) -> Iterator[Callable[..., TestClient]]:
    """Yield a function that returns a server of a bundle with these prompts."""
    clients = []

    def serve(prompts: dict[str, str], **options: Any) -> TestClient:
        client = TestClient(create_app(make_service(prompted(tmp_path, **prompts), **options)))
        clients.append(client)
        client.__enter__()
        wait_until_ready(client)
        client.put("/corpora/c").raise_for_status()
        return client

    yield serve
    for client in clients:
        client.__exit__()


def added(client: TestClient, *texts: str, **how: Any) -> Any:
    documents = [{"id": str(i), "text": text} for i, text in enumerate(texts)]
    answer = client.post("/corpora/c/documents", json={"documents": documents}, params=how)
    answer.raise_for_status()
    return answer


def searched(client: TestClient, query: str = TEXT, **how: Any) -> list[dict[str, Any]]:
    answer = client.post("/corpora/c/search", json={"query": query, "k": 10, "with_vector": True, **how})
    answer.raise_for_status()
    hits: list[dict[str, Any]] = answer.json()["hits"]
    return hits


@pytest.mark.parametrize(
    ("prompts", "asked", "kept"),
    [
        ({"query": "query: ", "document": "passage: "}, "query: ", "passage: "),
        ({"query": "query: ", "passage": "passage: "}, "query: ", "passage: "),
        ({"query": "query: "}, "query: ", ""),
        ({"corpus": "passage: "}, "", "passage: "),
        ({"query": "", "clustering": "topic: "}, "", ""),
    ],
)
def test_each_role_has_its_own(
    serve: Callable[..., TestClient], prompts: dict[str, str], asked: str, kept: str
) -> None:
    client = serve(prompts, default_prompt="by the server: ")
    added(client, TEXT, "a city of men")
    best, other = searched(client)
    assert np.allclose(best["vector"], embedded(kept + TEXT)[0], atol=1e-6)
    for hit, text in ((best, TEXT), (other, "a city of men")):
        cosine = float(embedded(asked + TEXT)[0] @ embedded(kept + text)[0])
        assert hit["score"] == pytest.approx(cosine, abs=2e-6), "and the server's default nowhere"
        assert hit["text"] == text
    both = client.post("/corpora/c/search", json={"queries": [TEXT, "men"], "k": 1}).json()["results"]
    assert both[0]["hits"][0]["score"] == best["score"]
    vector = client.post("/embed", json={"inputs": TEXT, "prompt": asked}).json()[0]
    assert [hit["score"] for hit in searched(client, query=None, vector=vector)] == pytest.approx(  # type: ignore[arg-type]
        [best["score"], other["score"]], abs=2e-6
    )


def test_it_stands_before_each_passage_and_not_in_what_is_stored(serve: Callable[..., TestClient]) -> None:
    client = serve({"document": "of a book: "})
    text = " ".join(f"word{i}." for i in range(60))
    added(client, text, chunk_tokens=20)
    hit, *_ = searched(client, "word30")
    passage = text[hit["span"]["start"] : hit["span"]["end"]]
    assert "word30." in passage and passage != text
    assert np.allclose(hit["vector"], embedded("of a book: " + passage)[0], atol=1e-6)
    assert client.get("/corpora/c/documents/0").json()["text"] == text


def test_a_passage_may_be_as_long_as_it_leaves_room_for(serve: Callable[..., TestClient]) -> None:
    client = serve({"document": "so it is "})
    text = " ".join(["word"] * 2 * MAX_LENGTH)
    longest = MAX_LENGTH - 2 - 3
    documents = {"documents": [{"id": "a", "text": text}]}
    refused = client.post("/corpora/c/documents", json=documents, params={"chunk_tokens": longest + 1})
    assert refused.status_code == 422 and f"reads {longest} tokens behind its prompt" in refused.json()["error"]
    assert added(client, text, chunk_tokens=longest).headers["x-truncated-inputs"] == "0"


def test_what_it_leaves_no_room_for_is_cut_and_told(serve: Callable[..., TestClient]) -> None:
    fits = " ".join(["word"] * (MAX_LENGTH - 2))
    client = serve({"document": "so it is "})
    for text, cut in ((fits, "1"), (fits.removesuffix("word word word"), "0")):
        for _ in range(2):  # The first time, and when the text is cached.
            assert added(client, text).headers["x-truncated-inputs"] == cut


def test_a_corpus_of_before_is_embedded_again(
    make_service: MakeService, tmp_path: Path, wait_until_ready: Callable[[TestClient], None]
) -> None:
    """Re-embed a corpus whose vectors were made without prompts, and therefore have another fingerprint."""
    with TestClient(create_app(make_service(prompted(tmp_path, "fake-1")))) as client:
        wait_until_ready(client)
        client.put("/corpora/c").raise_for_status()
        added(client, TEXT)
    with TestClient(create_app(make_service(prompted(tmp_path, "fake-p", query="query: ", document="of: ")))) as client:
        wait_until_ready(client)
        assert client.post("/corpora/c/search", json={"query": TEXT}).status_code == 409
        asked = client.post("/corpora/c/reembed")
        assert ended(client, asked.headers["location"])["state"] == "succeeded"
        (hit,) = searched(client)
        assert np.allclose(hit["vector"], embedded("of: " + TEXT)[0], atol=1e-6)
        assert hit["score"] == pytest.approx(
            float(embedded("query: " + TEXT)[0] @ embedded("of: " + TEXT)[0]), abs=2e-6
        )


@pytest.mark.slow
@pytest.mark.parametrize("document", ["document", "passage"])
def test_sentence_transformers_finds_the_same(
    launch: Callable[..., Any], tiny_bundle: Path, tmp_path: Path, document: str
) -> None:
    """Compare with `encode_query` and `encode_document`, which read the bundle's files by themselves."""
    from sentence_transformers import SentenceTransformer

    given = ["--prompt", "query=who can say: ", "--prompt", f"{document}=it is said that "]
    assert export(["export", str(tiny_bundle), "--out", str(tmp_path / "one"), "--no-measure", *given]) == 0
    running = launch("--bundle", str(tmp_path / "one"), engine="onnxruntime")
    texts = ["the cat and the dog", "rain on a river", "a bird will sing", "fire"]
    running.client.put("/corpora/c").raise_for_status()
    added(running.client, *texts)
    encoder = SentenceTransformer(str(tmp_path / "one"), device="cpu")
    theirs = encoder.encode_document(texts) @ encoder.encode_query(["the moon will sleep"])[0]
    ours = {hit["id"]: hit["score"] for hit in searched(running.client, "the moon will sleep")}
    assert [ours[str(i)] for i in range(4)] == pytest.approx(theirs.tolist(), abs=1e-4)
    bare = encoder.encode(texts) @ encoder.encode(["the moon will sleep"])[0]
    assert np.abs(theirs - bare).max() > 1e-3, "they tell"
