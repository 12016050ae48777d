"""Tests of search by example, diversity, groups, order, counts, several corpora and metadata changes, over HTTP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.serving.shelf import embedded

pytestmark = pytest.mark.backends
TEXTS = [f"a {kind} by the {place}" for kind in ("house", "boat", "tree") for place in ("river", "sea", "lake", "road")]
ROWS: list[dict[str, Any]] = [
    {"id": f"d{i}", "text": text, "metadata": {"kind": text.split()[1], "n": i, "odd": i % 2 == 1}}
    for i, text in enumerate(TEXTS)
]


@pytest.fixture
def corpus(client: TestClient) -> TestClient:
    client.put("/corpora/c").raise_for_status()
    client.post("/corpora/c/documents", json={"documents": ROWS}).raise_for_status()
    return client


def hits(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    answer = client.post("/corpora/c/search", json=body)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["hits"]
    return found


def refused(client: TestClient, **body: Any) -> str:
    answer = client.post("/corpora/c/search", json=body)
    assert answer.status_code == 422, answer.text
    said: str = answer.json()["error"]
    return said


def test_examples_are_the_mean_of_their_vectors_and_no_hits(corpus: TestClient) -> None:
    found = hits(corpus, like={"positive": ["d0", "d1"], "negative": ["d4"]}, k=20)
    vectors = {row["id"]: vector for row, vector in zip(ROWS, embedded(*TEXTS), strict=True)}
    wanted = 2 * (vectors["d0"] + vectors["d1"]) / 2 - vectors["d4"]
    wanted /= np.linalg.norm(wanted)
    expected = {id: float(vector @ wanted) for id, vector in vectors.items() if id not in ("d0", "d1", "d4")}
    assert {hit["id"]: hit["score"] for hit in found} == pytest.approx(expected, abs=1e-4)
    assert [hit["score"] for hit in found] == sorted((hit["score"] for hit in found), reverse=True)


def test_examples_go_with_a_filter(corpus: TestClient) -> None:
    found = hits(corpus, like={"positive": ["d0"]}, filter={"kind": "boat"}, k=20)
    assert {hit["id"] for hit in found} == {"d4", "d5", "d6", "d7"}


def test_an_unknown_example_is_named(corpus: TestClient) -> None:
    assert "like.positive.1" in refused(corpus, like={"positive": ["d0", "gone"]})
    assert "like.negative.0" in refused(corpus, like={"positive": ["d0"], "negative": ["gone"]})
    assert "like" in refused(corpus, like={"positive": []})
    assert "like" in refused(corpus, like={"positive": ["d0"]}, mode="hybrid")


def test_a_group_has_its_best_hits(corpus: TestClient) -> None:
    every = hits(corpus, query="a boat by the sea", k=20)
    found = hits(corpus, query="a boat by the sea", group_by="kind", group_size=2, k=2)
    kinds = list(dict.fromkeys(hit["metadata"]["kind"] for hit in every))[:2]
    expected = [[hit["id"] for hit in every if hit["metadata"]["kind"] == kind][:2] for kind in kinds]
    assert [hit["id"] for hit in found] == [id for group in expected for id in group]
    assert [hit["group"] for hit in found] == [kinds[0]] * 2 + [kinds[1]] * 2
    second = hits(corpus, query="a boat by the sea", group_by="kind", group_size=2, k=1, offset=1)
    assert [hit["id"] for hit in second] == expected[1]


def test_groups_by_document_return_a_long_document_once(corpus: TestClient) -> None:
    corpus.put("/corpora/long").raise_for_status()
    long = {"id": "long", "text": "a house by the sea. " * 60}
    added = corpus.post("/corpora/long/documents?chunk_tokens=16", json={"documents": [long, {**ROWS[8], "id": "t"}]})
    added.raise_for_status()
    body = {"query": "a house by the sea", "k": 2}
    alone = corpus.post("/corpora/long/search", json=body).json()["hits"]
    assert {hit["id"] for hit in alone} == {"long"}
    one_each = corpus.post("/corpora/long/search", json=body | {"group_by": "$id"}).json()["hits"]
    assert [hit["id"] for hit in one_each] == ["long", "t"]


def test_hits_are_ordered_by_metadata(corpus: TestClient) -> None:
    found = hits(corpus, query="a house", sort=["odd:desc", "n:asc"], k=20)
    assert [(hit["metadata"]["odd"], hit["metadata"]["n"]) for hit in found] == [
        (odd, n) for odd in (True, False) for n in range(12) if n % 2 == odd
    ]


def test_diversity_keeps_the_best_hit_and_spreads_the_others(corpus: TestClient) -> None:
    plain = [hit["id"] for hit in hits(corpus, query="a boat by the sea", k=12)]
    assert [hit["id"] for hit in hits(corpus, query="a boat by the sea", k=12, diversity=0)] == plain
    spread = hits(corpus, query="a boat by the sea", k=5, diversity=0.8, with_vector=True)
    assert spread[0]["id"] == plain[0]
    vectors = np.array([hit["vector"] for hit in spread])
    near = np.array([hit["vector"] for hit in hits(corpus, query="a boat by the sea", k=5, with_vector=True)])
    assert (vectors @ vectors.T).mean() < (near @ near.T).mean()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"query": "a", "sort": ["n:up"]}, "sort"),
        ({"query": "a", "sort": ["n:asc"], "diversity": 0.5}, "diversity"),
        ({"query": "a", "group_size": 2}, "group_size"),
        ({"queries": ["a"], "sort": ["n:asc"]}, "queries"),
        ({"queries": ["a"], "total": True}, "queries"),
        ({"query": "a", "diversity": 0.5, "k": 500}, "k"),
        ({"query": "a", "diversity": 2}, "diversity"),
    ],
)
def test_options_that_contradict_each_other_are_refused(corpus: TestClient, body: dict[str, Any], field: str) -> None:
    assert field in refused(corpus, **body)


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_counts_are_over_all_that_the_search_chooses_from(corpus: TestClient, mode: str) -> None:
    body = {"query": "boat river", "mode": mode, "filter": {"n": {"$lt": 10}}, "k": 1, "facets": ["kind", "odd", "no"]}
    answer = corpus.post("/corpora/c/search", json=body | {"total": True}).json()
    chosen = [
        row["metadata"]
        for row in ROWS
        if row["metadata"]["n"] < 10 and (mode != "lexical" or {"boat", "river"} & set(row["text"].split()))
    ]
    assert answer["total"] == len(chosen)
    assert answer["facets_complete"]
    for field in ("kind", "odd"):
        counted = {value["value"]: value["documents"] for value in answer["facets"][field]}
        assert counted == {value: sum(one[field] == value for one in chosen) for value in {m[field] for m in chosen}}
    assert answer["facets"]["no"] == []


def test_a_search_by_url_is_the_search_by_post(corpus: TestClient) -> None:
    by_url = corpus.get(
        "/corpora/c/search",
        params={"q": "a boat", "k": 3, "mode": "hybrid", "filter": '{"odd": true}', "sort": "n:desc"},
    )
    assert by_url.status_code == 200, by_url.text
    assert by_url.json()["hits"] == hits(
        corpus, query="a boat", k=3, mode="hybrid", filter={"odd": True}, sort=["n:desc"]
    )
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "q"),
        ({"q": "a", "k": 0}, "k"),
        ({"q": "a", "filter": "{"}, "filter"),
        ({"q": "a", "sort": "n"}, "sort"),
    ]
    for params, field in wrong:
        answer = corpus.get("/corpora/c/search", params=params)
        assert (answer.status_code, field in answer.json()["error"]) == (422, True), answer.text


def test_hits_of_several_corpora_are_merged_by_score(corpus: TestClient) -> None:
    for name, rows in (("even", ROWS[::2]), ("uneven", ROWS[1::2])):
        corpus.put(f"/corpora/{name}").raise_for_status()
        corpus.post(f"/corpora/{name}/documents", json={"documents": rows}).raise_for_status()
    body = {"query": "a boat by the sea", "k": 4, "offset": 1}
    both = corpus.post("/search", json=body | {"corpora": ["even", "uneven"], "total": True}).json()
    assert [hit["score"] for hit in both["hits"]] == [hit["score"] for hit in hits(corpus, **body)]
    assert {hit["corpus"] for hit in both["hits"]} == {"even", "uneven"}
    assert (both["total"], both["cursor"]) == (12, None)
    for wrong in ({"corpora": ["even", "even"]}, {"corpora": ["even"], "corpus": "c"}, {}, {"corpora": ["a b"]}):
        assert corpus.post("/search", json=body | wrong).status_code == 422
    assert corpus.post("/search", json=body | {"corpora": ["even", "gone"]}).status_code == 404


def test_an_explanation_has_rank_and_score_of_each_ranking(corpus: TestClient) -> None:
    found = hits(corpus, query="boat sea", mode="hybrid", explain=True, k=12)
    dense, lexical = hits(corpus, query="boat sea", k=12), hits(corpus, query="boat sea", mode="lexical", k=12)
    for hit in found:
        for name, ranking in (("dense", dense), ("lexical", lexical)):
            rank = next((i for i, one in enumerate(ranking, start=1) if one["id"] == hit["id"]), None)
            assert hit["explain"][name]["rank"] == rank
        parts = [1 / (60 + part["rank"]) for part in hit["explain"].values() if part["rank"]]
        assert hit["score"] == pytest.approx(sum(parts), abs=1e-4)
    (first, *_) = hits(corpus, query="boat", mode="lexical", explain=True)
    assert first["explain"] == {"lexical": {"rank": 1, "score": first["score"]}}


def test_metadata_is_merged_without_new_vectors(corpus: TestClient) -> None:
    before = hits(corpus, query="a boat", k=12, with_vector=True, filter={"kind": "boat"})
    patched = corpus.patch("/corpora/c/documents/d4", json={"metadata": {"odd": None, "by": {"name": "Jo"}, "n": 40}})
    assert patched.status_code == 200
    assert patched.json()["metadata"] == {"kind": "boat", "n": 40, "by": {"name": "Jo"}}
    many = corpus.patch("/corpora/c/documents", json={"metadata": {"kind": "ship"}, "filter": {"kind": "boat"}})
    assert many.json() == {"patched": 4}
    some = corpus.patch("/corpora/c/documents", json={"metadata": {"seen": True}, "ids": ["d4", *TEXTS * 200]})
    assert some.json() == {"patched": 1}
    after = hits(corpus, query="a boat", k=12, with_vector=True, filter={"kind": "ship"})
    assert [(hit["id"], hit["score"], hit["vector"]) for hit in after] == [
        (hit["id"], hit["score"], hit["vector"]) for hit in before
    ]
    assert hits(corpus, query="a boat", filter={"kind": "boat"}) == []
    assert [hit["id"] for hit in hits(corpus, query="a boat", filter={"by.name": "Jo", "seen": True})] == ["d4"]
    listed = corpus.get("/corpora/c/documents").json()["documents"]
    assert {row["id"] for row in listed} == {row["id"] for row in ROWS}


def test_a_patch_that_can_not_be_stored_is_refused(corpus: TestClient) -> None:
    for body, status, field in (
        ({"metadata": {"a": "x" * 200_000}}, 413, "metadata"),
        ({"metadata": 3}, 422, "metadata"),
        ({}, 422, "metadata"),
    ):
        answer = corpus.patch("/corpora/c/documents/d0", json=body)
        assert (answer.status_code, field in answer.json()["error"]) == (status, True), answer.text
    assert corpus.patch("/corpora/c/documents/gone", json={"metadata": {}}).status_code == 404
    wrong: list[dict[str, Any]] = [{}, {"ids": ["d0"], "filter": {"n": 1}}, {"ids": ["d0"], "filter": {}}]
    for which in wrong:
        answer = corpus.patch("/corpora/c/documents", json={"metadata": {}} | which)
        assert answer.status_code == 422
    assert corpus.get("/corpora/c/documents/d0").json()["metadata"] == ROWS[0]["metadata"]
