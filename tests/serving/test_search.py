"""Tests of corpora, documents and search over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.corpora import search as finding
from serving.corpora.corpora import Corpora
from serving.corpora.filter_language import LARGE
from serving.corpora.stores import records
from serving.errors import Invalid
from serving.service import Service

pytestmark = pytest.mark.backends
BOOKS: list[dict[str, Any]] = [
    {"id": "emma", "text": "a rich young woman makes matches", "metadata": {"year": 1815, "by": {"name": "Austen"}}},
    {"id": "moby/dick", "text": "a captain hunts a white whale", "metadata": {"year": 1851}},
    {"id": "ulysses", "text": "a man walks through a city for a day", "metadata": {"year": 1922}},
]
DOCUMENTS = "/corpora/books/documents"


@pytest.fixture
def books(client: TestClient) -> TestClient:
    assert client.put("/corpora/books").status_code == 201
    assert client.post(DOCUMENTS, json={"documents": BOOKS}).json() == {
        "ids": [book["id"] for book in BOOKS],
        "count": 3,
    }
    return client


def search(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/corpora/books/search", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert client.post("/search", json={"corpus": "books", **body}).json() | {"took_ms": 0} == found | {"took_ms": 0}
    return found


def ids(client: TestClient, **body: Any) -> list[str]:
    return [hit["id"] for hit in search(client, **body)["hits"]]


def test_a_corpus(client: TestClient) -> None:
    created = client.put("/corpora/c", json={"description": "mine"})
    assert (created.status_code, created.json()["description"], created.json()["recall_target"]) == (201, "mine", 0.95)
    again = client.put("/corpora/c", json={"recall_target": 0.9, "description": None})
    assert (again.status_code, again.json()["description"], again.json()["recall_target"]) == (200, "mine", 0.9)
    listed = client.get("/corpora/c").json() | {"synonyms": None, "stop_words": None}
    assert client.get("/corpora").json()["corpora"] == [listed]
    assert (
        client.get("/corpora/c").json().items()
        >= {"documents": 0, "dim": None, "index": "exact", "state": "ready"}.items()
    )
    deleted = client.delete("/corpora/c")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert client.get("/corpora/c").status_code == 404


@pytest.mark.backends("sqlite")
@pytest.mark.parametrize("body", [{}, {"recall_target": 0.5}])
def test_a_corpus_that_is_deleted_while_it_is_created(
    client: TestClient, refuses: Callable[..., None], monkeypatch: pytest.MonkeyPatch, body: dict[str, float]
) -> None:
    create = Corpora._create

    def deleted(self: Corpora, *given: Any) -> bool:
        created = create(self, *given)
        self.drop("c")
        return created

    with monkeypatch.context() as patch:
        patch.setattr(Corpora, "_create", deleted)
        refuses((409, "Conflict", "'c' was deleted while it was being created"), "PUT", "/corpora/c", json=body)
    assert client.put("/corpora/c", json=body).status_code == 201


def test_hits(books: TestClient) -> None:
    answer = search(books, query="the white whale", k=2)
    assert (answer["mode"], answer["index"]) == ("dense", "exact")
    assert answer["took_ms"] > 0
    best = answer["hits"][0]
    assert {key: best[key] for key in ("id", "text", "metadata")} == BOOKS[1]
    assert best["score"] >= answer["hits"][1]["score"]
    (ranked,) = books.post("/rerank", json={"query": "the white whale", "texts": [best["text"]]}).json()
    assert best["score"] == pytest.approx(ranked["score"], abs=2e-6)


def test_what_a_hit_carries(books: TestClient) -> None:
    bare = search(books, query="whale", k=1, with_text=False, with_metadata=False, with_vector=True)["hits"][0]
    assert set(bare) == {"id", "score", "vector"}
    stored = books.post("/embed", json={"inputs": BOOKS[1]["text"]}).json()[0]
    assert np.allclose(bare["vector"], stored, atol=1e-6)


def test_queries_and_vectors(books: TestClient) -> None:
    both = search(books, queries=["whale", "city"], k=1)["results"]
    assert [result["hits"][0]["id"] for result in both] == ["moby/dick", "ulysses"]
    vector = books.post("/embed", json={"inputs": "whale"}).json()[0]
    assert ids(books, vector=vector) == ids(books, query="whale")
    assert search(books, vector=[1e300 * x for x in vector])["hits"] == search(books, vector=vector)["hits"]


def test_an_index_is_named_where_one_was_searched(books: TestClient) -> None:
    named = {mode: search(books, query="whale", mode=mode)["index"] for mode in ("dense", "hybrid", "lexical")}
    assert named == {"dense": "exact", "hybrid": "exact", "lexical": None}


def test_pages_scores_and_filters(books: TestClient) -> None:
    everything = search(books, query="a", mode="Dense", exact=True)["hits"]
    assert ids(books, query="a", k=1, offset=1) == [everything[1]["id"]]
    assert ids(books, query="a", offset=9) == []
    assert ids(books, query="a", min_score=everything[0]["score"]) == [everything[0]["id"]]
    assert set(ids(books, query="a", filter={"year": {"$gt": 1850}})) == {"moby/dick", "ulysses"}
    assert ids(books, query="a", filter={"by.name": "Austen"}) == ["emma"]
    assert ids(books, query="a", k=1, filter={"year": {"$lt": 1}}) == []
    assert len(ids(books, query="a", filter={})) == 3


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_the_least_score_is_compared_with_the_scores_shown(client: TestClient, mode: str) -> None:
    client.put("/corpora/c")
    texts = [f"whale {'and ' * i}sea" for i in range(12)] + [f"ship {i}" for i in range(20)]
    client.post("/corpora/c/documents", json={"documents": [{"id": str(i), "text": t} for i, t in enumerate(texts)]})
    asked = {"query": "whale sea", "corpus": "c", "mode": mode, "k": 12}
    scores = [hit["score"] for hit in client.post("/search", json=asked).json()["hits"]]
    for score in scores:
        kept = client.post("/search", json=asked | {"min_score": score}).raise_for_status().json()["hits"]
        assert [hit["score"] for hit in kept] == [one for one in scores if one >= score]


def test_a_sort_is_written_as_text_or_as_an_object(books: TestClient) -> None:
    newest = ["ulysses", "moby/dick", "emma"]
    assert ids(books, query="a", sort=["year:desc"]) == newest
    assert ids(books, query="a", sort=[{"field": "year", "order": "desc"}]) == newest
    assert ids(books, query="a", sort=[{"field": "year"}]) == newest[::-1]


def test_a_field_without_values_to_sort_group_or_count_is_told(books: TestClient, refuses: Callable[..., None]) -> None:
    says = "no document has a boolean or a number or a string in 'by', only objects."
    for option in ({"sort": ["by:asc"]}, {"group_by": "by"}, {"facets": ["by"]}):
        assert search(books, query="a", **option)["warnings"] == [f"{next(iter(option))}: {says}"]
    near = [{"field": "year", "near": {"lat": 0, "lon": 0}}]
    assert search(books, query="a", sort=near)["warnings"] == [
        "sort: no document has an object in 'year', only numbers."
    ]
    refuses(
        (422, "Validation", "facets: can't count $id"),
        "POST",
        "/search",
        json={"query": "a", "corpus": "books", "facets": ["$id"]},
    )


def test_a_filter_in_the_query_string_is_an_object(books: TestClient, refuses: Callable[..., None]) -> None:
    for path in ("/corpora/books/search?q=a&filter=null", f"{DOCUMENTS}?filter=null"):
        refuses((422, "Validation", "filter: must be an object"), "GET", path)


def test_integers_name_documents_as_in_uploads(books: TestClient) -> None:
    books.post(DOCUMENTS, json=[{"id": 5, "text": "a prince"}]).raise_for_status()
    assert books.patch(DOCUMENTS, json={"ids": [5], "metadata": {"year": 1943}}).json() == {"patched": 1}
    assert books.patch(DOCUMENTS, json={"filter": {}, "metadata": {"read": True}}).json() == {"patched": 4}
    assert ids(books, like={"positive": [5]}, k=1) != ["5"]


def test_what_no_document_can_match_is_told_beside_the_hits(books: TestClient, refuses: Callable[..., None]) -> None:
    warning = "filter: no document has the field 'yaer'. Did you mean 'year'?"
    answer = search(books, query="a", filter={"yaer": {"$gt": 1850}})
    assert (answer["hits"], answer["warnings"]) == ([], [warning])
    answer = search(books, queries=["a", "b"], mode="lexical", filter={"yaer": {"$ne": 1850}})
    assert (len(answer["results"]), answer["warnings"]) == (2, [warning])
    assert "warnings" not in search(books, query="a", filter={"year": 1})
    gone = books.request("DELETE", DOCUMENTS, json={"filter": {"year": "1922"}})
    (told,) = gone.json().pop("warnings")
    assert told.startswith("filter: no document has a string in 'year', only numbers.")
    refuses(
        (422, "Validation", "filter.year.gte: did you mean $gte?"),
        "POST",
        "/corpora/books/search",
        json={"query": "a", "filter": {"year": {"gte": 1850}}},
    )


def test_a_field_that_no_document_has_is_told_for_sort_groups_and_facets(books: TestClient) -> None:
    told = search(books, query="a", sort=["yaer:desc"], group_by="autor", facets=["yaer", "year"])["warnings"]
    options = [warning.partition(":")[0] for warning in told]
    assert options == ["sort", "group_by", "facets"] and all("Did you mean 'year'?" in told[i] for i in (0, 2))
    assert "warnings" not in search(books, query="a", sort=["year:asc"], group_by="by.name", facets=["year"])
    assert "warnings" not in search(books, query="a", filter={"year": 1}, sort=["year:asc"], facets=["year"])
    assert "warnings" not in search(books, query="a", k=1, offset=9, sort=["$id:asc"], group_by="$id")
    (listed,) = books.get(DOCUMENTS, params={"sort": "yaer:asc"}).json()["warnings"]
    assert listed.startswith("sort: ") and "'yaer'" in listed
    assert "warnings" not in books.get(DOCUMENTS, params={"sort": "year:asc"}).json()


def test_a_filter_by_id(books: TestClient) -> None:
    assert ids(books, query="a", filter={"$id": "moby/dick"}) == ["moby/dick"]
    assert set(ids(books, query="a", filter={"$id": {"$ne": "emma"}, "year": {"$lt": 1900}})) == {"moby/dick"}
    gone = books.request("DELETE", DOCUMENTS, json={"filter": {"$id": {"$in": ["emma", "ulysses", "nobody"]}}})
    assert gone.json() == {"deleted": 2}
    assert ids(books, query="a") == ["moby/dick"]


def test_documents_are_listed_and_counted_by_a_filter_alone(books: TestClient) -> None:
    def listed(**params: Any) -> dict[str, Any]:
        answer = books.get(DOCUMENTS, params={"filter": json.dumps({"year": {"$gt": 1820}}), **params})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    assert listed() == {"documents": BOOKS[1:], "cursor": None, "count": 2}
    first = listed(limit=1)
    assert (first["documents"], first["count"]) == (BOOKS[1:2], 2)
    assert listed(limit=1, cursor=first["cursor"]) == {"documents": BOOKS[2:], "cursor": None, "count": 2}
    assert listed(limit=0) == {"documents": [], "cursor": None, "count": 2}
    assert listed(filter='{"$id": "emma"}')["documents"] == BOOKS[:1]
    assert listed(filter="{}", limit=0) == {"documents": [], "cursor": None, "count": 3}
    assert books.get(DOCUMENTS, params={"limit": 2}).json()["count"] == 3
    assert listed(filter='{"yaer": 1}') == {
        "documents": [],
        "cursor": None,
        "count": 0,
        "warnings": ["filter: no document has the field 'yaer'. Did you mean 'year'?"],
    }


def test_an_empty_corpus_has_no_hits(client: TestClient) -> None:
    client.put("/corpora/books")
    assert ids(client, query="a") == []
    assert search(client, queries=["a", "b"])["results"] == [{"hits": [], "cursor": None}] * 2


def test_same_id_replaces(books: TestClient) -> None:
    books.post(DOCUMENTS, json={"documents": [{"id": "emma", "text": "penguins on ice"}]})
    assert ids(books, query="penguins on ice", k=1) == ["emma"]
    assert books.get(f"{DOCUMENTS}/emma").json() == {"id": "emma", "text": "penguins on ice", "metadata": {}}
    assert len(ids(books, query="a rich young woman makes matches")) == 3
    assert books.get("/corpora/books").json()["documents"] == 3


def test_deleted_stays_deleted(books: TestClient) -> None:
    assert books.get(f"{DOCUMENTS}/moby/dick").json() == BOOKS[1]
    assert books.delete(f"{DOCUMENTS}/moby%2Fdick").status_code == 204
    assert books.get(f"{DOCUMENTS}/moby/dick").status_code == 404
    assert "moby/dick" not in ids(books, query="white whale")
    gone = books.request("DELETE", DOCUMENTS, json={"filter": {"year": {"$gte": 1900}}})
    assert gone.json() == {"deleted": 1}
    assert ids(books, query="a") == ["emma"]


def test_a_line_end_in_an_id_is_part_of_it(client: TestClient) -> None:
    client.put("/corpora/books")
    given = ["a", "a\n", "a\nb", "a/\n", "\n", "a\r"]
    client.post(DOCUMENTS, json={"documents": [{"id": id, "text": repr(id)} for id in given]})
    for id in given:
        assert client.get(f"{DOCUMENTS}/{quote(id)}").json()["text"] == repr(id)
    for id in given[1:]:
        assert client.delete(f"{DOCUMENTS}/{quote(id)}").status_code == 204
    assert [one["id"] for one in client.get(DOCUMENTS).json()["documents"]] == ["a"]
    assert client.delete(f"{DOCUMENTS}/a%0A").status_code == 404


def test_pages_of_documents(client: TestClient) -> None:
    client.put("/corpora/books")
    written = [f"d{i:02}" for i in range(25)]
    client.post(DOCUMENTS, json={"documents": [{"id": name, "text": name} for name in written]})
    read, cursor = [], ""
    while cursor is not None:
        page = client.get(f"{DOCUMENTS}?limit=10" + (f"&cursor={cursor}" if cursor else "")).json()
        read += [document["id"] for document in page["documents"]]
        cursor = page["cursor"]
    assert read == written


def test_a_page_of_large_documents_ends_early_and_leads_on(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PAGE_CHARACTERS", 100)
    client.put("/corpora/books")
    texts = {"a": "x" * 40, "b": "x" * 300, "c": "x", "d": "x" * 60, "e": "x"}
    metadata = {"long": "y" * 40}
    written = [{"id": name, "text": text, "metadata": metadata} for name, text in texts.items()]
    client.post(DOCUMENTS, json={"documents": written})
    pages, cursor = [], ""
    while cursor is not None:
        page = client.get(f"{DOCUMENTS}?limit=3&cursor={cursor}" if cursor else f"{DOCUMENTS}?limit=3").json()
        pages.append([document["id"] for document in page["documents"]])
        cursor = page["cursor"]
    assert pages == [["a", "b"], ["c", "d"], ["e"]]


def test_ndjson_without_ids(client: TestClient) -> None:
    client.put("/corpora/books")
    body = '{"text": "one"}\n{"text": "two", "id": null, "metadata": null}'
    answer = client.post(DOCUMENTS, content=body, headers={"content-type": "application/x-ndjson; charset=utf-8"})
    assert len(set(answer.json()["ids"])) == answer.json()["count"] == 2


def test_a_text_longer_than_the_model_reads_is_kept_whole_and_told(books: TestClient) -> None:
    long = "whale " * 200
    added = books.post(DOCUMENTS, json={"documents": [{"id": "long", "text": long}, {"id": "short", "text": "whale"}]})
    assert added.headers["x-truncated-inputs"] == "1"
    assert books.get(f"{DOCUMENTS}/long").json()["text"] == long
    again = books.post(DOCUMENTS, json={"documents": [{"id": "other", "text": long}, {"id": "short", "text": "whale"}]})
    assert again.headers["x-truncated-inputs"] == "1", "known by now, and as long as before"
    for body, cut in (({"query": long}, "1"), ({"query": "whale"}, "0"), ({"queries": [long, long]}, "2")):
        assert books.post("/corpora/books/search", json=body).headers["x-truncated-inputs"] == cut


def test_the_texts_of_one_answer_are_bounded(
    make_service: Callable[..., Service], wait_until_ready: Callable[[TestClient], None]
) -> None:
    with TestClient(create_app(make_service(max_search_characters=250))) as client:
        wait_until_ready(client)
        client.put("/corpora/books")
        client.post(DOCUMENTS, json={"documents": [{"text": "whale " * 16}]})
        assert client.post("/corpora/books/search", json={"queries": ["a", "b"]}).status_code == 200
        answer = client.post("/corpora/books/search", json={"queries": ["a", "b", "c"]})
        assert (answer.status_code, answer.json()["error_type"]) == (413, "Validation")
        assert "250 characters" in answer.json()["error"]


def test_fields_tell_what_a_filter_can_ask_for(books: TestClient) -> None:
    found = books.get("/corpora/books/fields").json()
    assert found["complete"]
    fields = {field.pop("field"): field for field in found["fields"]}
    years = [{"value": year, "documents": 1} for year in (1815, 1851, 1922)]
    assert fields == {
        "year": {"kinds": ["number"], "least": 1815, "greatest": 1922, "values": years, "complete": True},
        "by": {"kinds": ["object"], "least": None, "greatest": None, "values": [], "complete": True},
        "by.name": {
            "kinds": ["string"],
            "least": None,
            "greatest": None,
            "values": [{"value": "Austen", "documents": 1}],
            "complete": True,
        },
    }
    for field, told in fields.items():
        for one in told["values"]:
            assert len(ids(books, query="a", filter={field: one["value"]})) == one["documents"]
    few = {field["field"]: field for field in books.get("/corpora/books/fields?values=1").json()["fields"]}
    assert (few["year"]["values"], few["year"]["complete"]) == (years[:1], False)
    books.delete("/corpora/books/documents/emma")
    assert "by" not in {field["field"] for field in books.get("/corpora/books/fields").json()["fields"]}


def test_fields_of_nothing(books: TestClient, refuses: Callable[..., None]) -> None:
    refuses((404, "NotFound", "no corpus 'none'"), "GET", "/corpora/none/fields")
    refuses((422, "Validation", "values"), "GET", "/corpora/books/fields?values=0")


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_words_of_the_query_are_highlighted(books: TestClient, mode: str) -> None:
    answer = search(books, query='WHITE "whale" \U0001f40b', k=1, mode=mode, highlight=True)
    (hit,) = answer["hits"]
    assert hit["id"] == "moby/dick"
    assert [hit["text"][span["start"] : span["end"]] for span in hit["highlights"]] == ["white", "whale"]
    assert "highlights" not in search(books, query="white", mode=mode)["hits"][0]


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("x" * 1_000_000, (413, "1000000 bytes are more than the 999999 of one text")),
        ("\ud800", (422, "not valid Unicode: a lone surrogate")),
    ],
)
def test_queries_are_texts(
    books: TestClient, refuses: Callable[..., None], mode: str, text: str, refusal: tuple[int, str]
) -> None:
    status, says = refusal
    for field, asked in (("query", {"query": text}), ("queries.1", {"queries": ["whale", text]})):
        sent = {"content": json.dumps({**asked, "mode": mode}), "headers": {"content-type": "application/json"}}
        refuses((status, "Validation", f"{field}: {says}"), "POST", "/corpora/books/search", **sent)


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_words_without_spaces_and_look_alikes_are_found_and_highlighted(client: TestClient, mode: str) -> None:
    texts = {"book": "機械学習の入門書", "day": "今日は天気がいい", "office": "The ﬁnancial ofﬁce"}
    client.put("/corpora/c")
    client.post("/corpora/c/documents", json={"documents": [{"id": id, "text": text} for id, text in texts.items()]})
    asked = {"queries": ["機械学習", "天気", "FINANCIAL"], "mode": mode, "highlight": True, "k": 3}
    for result, (id, word) in zip(
        client.post("/corpora/c/search", json=asked).raise_for_status().json()["results"],
        [("book", "機械学習"), ("day", "天気"), ("office", "ﬁnancial")],
        strict=True,
    ):
        hit = next(hit for hit in result["hits"] if hit["highlights"])
        assert (hit["id"], [hit["text"][one["start"] : one["end"]] for one in hit["highlights"]]) == (id, [word])
        assert mode == "lexical" or hit["lexical"] > 0


def test_what_each_query_highlights_is_its_own(books: TestClient) -> None:
    answer = search(books, queries=["captain", "woman", "nothing"], highlight=True, k=3)
    marked = [
        {hit["text"][span["start"] : span["end"]] for hit in result["hits"] for span in hit["highlights"]}
        for result in answer["results"]
    ]
    assert marked == [{"captain"}, {"woman"}, set()]


def test_highlights_are_in_characters_of_the_passage(client: TestClient) -> None:
    client.put("/corpora/c")
    text = "\U0001f600 " * 40 + "a whale"
    client.post("/corpora/c/documents?chunk_tokens=16", json={"documents": [{"id": "a", "text": text}]})
    hits = client.post("/corpora/c/search", json={"query": "whale", "highlight": True}).json()["hits"]
    assert any("whale" in hit["text"] for hit in hits) and len(hits) > 1
    for hit in hits:
        marked = [hit["text"][span["start"] : span["end"]] for span in hit["highlights"]]
        assert marked == ["whale"] * ("whale" in hit["text"])


def test_highlights_are_bounded(
    books: TestClient, refuses: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    books.post(DOCUMENTS, json={"documents": [{"id": "much", "text": "whale " * 300}]})
    (hit,) = search(books, query="whale", mode="lexical", k=1, highlight=True)["hits"]
    assert (hit["id"], len(hit["highlights"])) == ("much", 200)
    monkeypatch.setattr(finding, "MARKED_TOGETHER", 1799)
    body = {"query": "whale", "mode": "lexical", "k": 1, "highlight": True}
    says = "highlight: highlighting would search 1800 characters in the hits, more than 1799: ask for fewer hits"
    refuses((413, "Validation", says), "POST", "/corpora/books/search", json=body)
    assert search(books, **{**body, "highlight": False})["hits"]


def test_a_vector_has_no_words_to_highlight(books: TestClient, refuses: Callable[..., None]) -> None:
    body = {"vector": [1.0] * 16, "highlight": True}
    refuses((422, "Validation", "give query or queries"), "POST", "/corpora/books/search", json=body)


@pytest.mark.parametrize(("values", "apart"), [(10, False), (LARGE, True)])
@pytest.mark.parametrize("asked", ["POST search", "DELETE documents"])
def test_a_large_filter_is_compiled_beside_the_event_loop(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, values: int, apart: bool, asked: str
) -> None:
    (method, what), threads = asked.split(), list[str]()

    def compiled(_: object) -> None:
        threads.append(threading.current_thread().name)
        raise Invalid("compiled", field="filter")

    monkeypatch.setattr(f"serving.api.{what}.compile_filter", compiled)
    client.put("/corpora/books")
    body = {"filter": {"a": {"$in": list(range(values))}}} | ({"vector": [1.0]} if what == "search" else {})
    assert client.request(method, f"/corpora/books/{what}", json=body).status_code == 422
    assert [thread.startswith("corpora") for thread in threads] == [apart]
