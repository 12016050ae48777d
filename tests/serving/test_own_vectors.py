"""Tests of corpora whose documents have their own vectors, over HTTP."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.test_moving_corpora import ended

pytestmark = pytest.mark.backends
Refuses = Callable[..., None]
CORPUS, DOCUMENTS, SEARCH = "/corpora/own", "/corpora/own/documents", "/corpora/own/search"
NDJSON = {"content-type": "application/x-ndjson"}
BOOKS: list[dict[str, Any]] = [
    {"id": "whale", "text": "a captain hunts a whale", "year": 1851, "vector": [3, 4, 0]},
    {"id": "city", "text": "a man walks through a city", "vector": [0, 0, 0.5]},
    {"id": "garden", "text": "a captain in a garden", "vector": [-1e200, 0, 0]},
]


@pytest.fixture
def own(client: TestClient) -> TestClient:
    assert client.put("/corpora/own", json={"vectors": "own"}).status_code == 201
    client.post(DOCUMENTS, json={"documents": BOOKS}).raise_for_status()
    return client


def hits(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    answer = client.post(SEARCH, json=body)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["hits"]
    return found


def ids(client: TestClient, **body: Any) -> list[str]:
    return [hit["id"] for hit in hits(client, **body)]


def test_documents_are_found_by_the_vectors_that_they_brought(own: TestClient) -> None:
    described = own.get(CORPUS).json()
    assert (described["vectors"], described["dim"], described["fingerprint"]) == ("own", 3, None)
    assert (described["state"], described["passages"]) == ("ready", 3)
    whale, *_, garden = hits(own, vector=[6, 8, 0], with_vector=True)
    assert (whale["id"], whale["score"], whale["metadata"]) == ("whale", 1.0, {"year": 1851})
    assert whale["vector"] == pytest.approx([0.6, 0.8, 0])
    assert (garden["id"], garden["score"]) == ("garden", pytest.approx(-0.6))
    assert garden["vector"] == pytest.approx([-1, 0, 0])


def test_they_are_found_by_words_too(own: TestClient) -> None:
    assert ids(own, query="captain", mode="lexical", filter={"year": 1851}) == ["whale"]
    assert ids(own, query="captain", vector=[-1, 0, 0], mode="hybrid")[0] == "garden"
    first = hits(own, query="city", vector=[1, 1, 0], mode="hybrid", fusion="weighted", alpha=1, explain=True)[0]
    assert (first["id"], first["dense"]) == ("whale", pytest.approx(0.989949, abs=1e-5))
    assert ids(own, like={"positive": ["whale"]})[0] == "city"


def test_a_page_of_words_and_vector_leads_to_the_next(own: TestClient) -> None:
    asked = {"query": "captain", "vector": [1, 0, 0], "mode": "hybrid", "k": 1}
    page = own.post(SEARCH, json=asked).json()
    following = own.post(SEARCH, json=asked | {"cursor": page["cursor"]}).json()["hits"]
    assert [page["hits"][0]["id"], following[0]["id"]] == ids(own, **asked | {"k": 2})
    other = own.post(SEARCH, json=asked | {"cursor": page["cursor"], "vector": [0, 1, 0]})
    assert (other.status_code, "another search" in other.text) == (422, True)


@pytest.mark.parametrize(
    ("refusal", "body"),
    [
        ((409, "Conflict", "no encoder can embed a query: search by vector"), {"query": "captain"}),
        ((409, "Conflict", "no encoder can embed a query"), {"query": "captain", "mode": "hybrid"}),
        (
            (422, "Validation", "vector: dense search needs either query or vector"),
            {"query": "captain", "vector": [1, 0, 0]},
        ),
        ((422, "Validation", "2 numbers, but corpus 'own' has 3"), {"vector": [1, 0]}),
        ((422, "Validation", "vector: hybrid search looks for words"), {"vector": [1, 0, 0], "mode": "hybrid"}),
        (
            (422, "Validation", "rerank: compares texts"),
            {"query": "a", "vector": [1, 0, 0], "mode": "hybrid", "rerank": {"method": "late_interaction"}},
        ),
    ],
)
def test_a_search_that_it_has_no_answer_to(
    own: TestClient, refuses: Refuses, refusal: tuple[int, str, str], body: dict[str, Any]
) -> None:
    assert own.get(CORPUS).status_code == 200
    refuses(refusal, "POST", SEARCH, json=body)


def test_an_encoders_corpus_is_searched_by_words_and_a_vector_too(client: TestClient) -> None:
    client.put("/corpora/own")
    plain = [{name: value for name, value in book.items() if name != "vector"} for book in BOOKS]
    client.post(DOCUMENTS, json=plain).raise_for_status()
    made = client.post("/embed", json={"inputs": "a man walks through a city"}).json()[0]
    assert ids(client, query="captain", vector=made, mode="hybrid", fusion="weighted", alpha=1)[0] == "city"


@pytest.mark.parametrize(
    ("refusal", "row"),
    [
        ((409, "Conflict", "documents.1.vector: is required, because the vectors of corpus 'own' come with its"), None),
        ((422, "Validation", "documents.1.vector: 2 numbers, but corpus 'own' has 3 dimensions"), [1, 2]),
        ((422, "Validation", "documents.1.vector: has no direction"), [0, 0, 0]),
        ((422, "Validation", "documents.1.vector: must be a list of numbers"), [0, "1", 0]),
    ],
)
def test_a_row_of_no_legal_vector_stores_nothing(
    own: TestClient, refuses: Refuses, refusal: tuple[int, str, str], row: Any
) -> None:
    bad = [{"id": "new", "text": "x", "vector": [1, 0, 0]}, {"text": "y", "vector": row}]
    refuses(refusal, "POST", DOCUMENTS, json=bad)
    assert own.get(f"{DOCUMENTS}/new").status_code == 404
    skipped = own.post(f"{DOCUMENTS}?on_error=skip", json=bad).json()
    assert (skipped["ids"], [error["place"] for error in skipped["errors"]]) == (["new"], ["documents.1"])


def test_the_corpus_of_an_encoder_refuses_a_vector_by_name(client: TestClient, refuses: Refuses) -> None:
    client.put("/corpora/own")
    refuses((409, "Conflict", "documents.0.vector: an encoder embeds corpus 'own'"), "POST", DOCUMENTS, json=BOOKS)
    kept = [{"id": "a", "text": "b", "vector": None, "metadata": {"vector": [1]}}]
    client.post(DOCUMENTS, json=kept).raise_for_status()
    assert client.get(f"{DOCUMENTS}/a").json()["metadata"] == {"vector": [1]}
    renamed = [{"id": "c", "vector": "a text", "text": "d"}]
    client.post(f"{DOCUMENTS}?text_column=vector", json=renamed).raise_for_status()
    assert client.get(f"{DOCUMENTS}/c").json() == {"id": "c", "text": "a text", "metadata": {"text": "d"}}


def test_own_vectors_and_an_encoder_exclude_each_other(client: TestClient, refuses: Refuses) -> None:
    own = {"vectors": "own"}
    refuses((422, "Validation", "dim: is only for vectors that come with"), "PUT", CORPUS, json={"dim": 3})
    refuses(
        (422, "Validation", "model: the vectors of this corpus come with its documents"),
        "PUT",
        CORPUS,
        json=own | {"model": "fake"},
    )
    assert client.put(CORPUS, json=own | {"dim": 3}).status_code == 201
    assert client.get(CORPUS).json()["dim"] == 3
    assert client.put(CORPUS, json=own).status_code == 200
    refuses((409, "Conflict", "have 3 numbers, not 4"), "PUT", CORPUS, json=own | {"dim": 4})
    refuses((409, "Conflict", "reembed"), "PUT", CORPUS, json={"model": "fake"})
    refuses((422, "Validation", "4 numbers"), "POST", DOCUMENTS, json=[{"text": "a", "vector": [1, 0, 0, 0]}])
    refuses((422, "Validation", "chunk_tokens: "), "POST", f"{DOCUMENTS}?chunk_tokens=16", json=BOOKS)
    assert client.put("/corpora/other", json={"model": "fake"}).status_code == 201
    refuses((409, "Conflict", "create another corpus"), "PUT", "/corpora/other", json=own)


def test_an_empty_corpus_keeps_its_rule(own: TestClient, refuses: Refuses) -> None:
    for book in BOOKS:
        own.delete(f"{DOCUMENTS}/{book['id']}").raise_for_status()
    refuses((409, "Conflict", "documents.0.vector: is required"), "POST", DOCUMENTS, json=[{"text": "a"}])
    refuses((422, "Validation", "has 3 dimensions"), "POST", DOCUMENTS, json=[{"text": "a", "vector": [1]}])
    assert hits(own, vector=[1, 0, 0]) == []
    own.post(DOCUMENTS, json=BOOKS).raise_for_status()
    assert ids(own, vector=[0, 0, 1], k=1) == ["city"]


def test_a_job_checks_the_vectors_first(own: TestClient) -> None:
    lines = [json.dumps({"id": str(i), "text": "t", "vector": [300 - i, i, 0]}) for i in range(300)]
    job = ended(own, own.post(DOCUMENTS, content="\n".join([*lines, '{"text": "t", "vector": [1]}']), headers=NDJSON))
    assert (job["state"], job["errors"][0]["error"].split(":")[0]) == ("failed", "line 301.vector")
    assert own.get(f"{DOCUMENTS}/0").status_code == 404
    assert ended(own, own.post(DOCUMENTS, content="\n".join(lines), headers=NDJSON))["state"] == "succeeded"
    assert own.get(CORPUS).json()["documents"] == 303
    assert ids(own, vector=[1, 299, 0], k=1) == ["299"]


def test_a_new_encoder_replaces_them_only_if_it_is_told(own: TestClient, refuses: Refuses) -> None:
    refuses((409, "Conflict", '"replace_own_vectors": true'), "POST", f"{CORPUS}/reembed")
    assert ids(own, vector=[0, 0, 1], k=1) == ["city"]
    assert ended(own, own.post(f"{CORPUS}/reembed", json={"replace_own_vectors": True}))["state"] == "succeeded"
    assert own.get(CORPUS).json()["vectors"] == "encoder"
    assert ids(own, query="a man walks through a city", k=1) == ["city"]
    refuses((409, "Conflict", "an encoder embeds"), "POST", DOCUMENTS, json=BOOKS)


@pytest.mark.backends("sqlite")
def test_a_restored_corpus_has_them(own: TestClient) -> None:
    made = ended(own, own.post(f"{CORPUS}/snapshots"))["result"]
    ended(own, own.put("/corpora/copy/restore", json={"snapshot": made["id"], "of": "own"}))
    before, after = (
        own.post(f"/corpora/{name}/search", json={"vector": [1, 2, 3], "with_vector": True}).json()["hits"]
        for name in ("own", "copy")
    )
    assert before == after
    assert own.get("/corpora/copy").json()["vectors"] == "own"


@pytest.mark.backends("sqlite")
def test_parquet_and_arrow_have_them(client: TestClient) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    client.put(CORPUS, json={"vectors": "own"})
    vectors = pyarrow.array([[3.0, 4.0], [0.0, 2.0]], pyarrow.list_(pyarrow.float32(), 2))
    table = pyarrow.table({"id": ["a", "b"], "text": ["x", "y"], "vector": vectors})
    parquet.write_table(table, file := io.BytesIO())
    headers = {"content-type": "application/vnd.apache.parquet"}
    assert client.post(DOCUMENTS, content=file.getvalue(), headers=headers).json()["ids"] == ["a", "b"]
    assert hits(client, vector=[0.6, 0.8], k=1, with_vector=True)[0]["vector"] == pytest.approx([0.6, 0.8])
    csv = client.post(DOCUMENTS, content='id,text,vector\na,b,"[1, 2]"\n', headers={"content-type": "text/csv"})
    assert (csv.status_code, "line 2.vector: is required" in csv.text) == (409, True)


COMPONENTS = st.integers(-100, 100)
VECTORS = st.lists(st.lists(COMPONENTS, min_size=4, max_size=4).filter(any), min_size=1, max_size=12)


@pytest.mark.backends("sqlite")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(vectors=VECTORS, query=st.lists(COMPONENTS, min_size=4, max_size=4).filter(any), scale=st.floats(1e-30, 1e30))
def test_scores_are_the_cosines_of_the_given_vectors(
    client: TestClient, vectors: list[list[int]], query: list[int], scale: float
) -> None:
    client.delete(CORPUS)
    client.put(CORPUS, json={"vectors": "own"})
    documents = [
        {"id": str(i), "text": "", "vector": [scale * number for number in one]} for i, one in enumerate(vectors)
    ]
    client.post(DOCUMENTS, json=documents).raise_for_status()
    found = {hit["id"]: hit["score"] for hit in hits(client, vector=query, k=100)}
    matrix, asked = np.array(vectors, np.float64), np.array(query, np.float64)
    cosines = matrix @ asked / np.linalg.norm(matrix, axis=1) / np.linalg.norm(asked)
    assert found == {str(i): pytest.approx(cosine, abs=2e-6) for i, cosine in enumerate(cosines.tolist())}
