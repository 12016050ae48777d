"""Finding by words and by both over HTTP, and the cursors that lead on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.corpora.filter_language import MAX_CONDITIONS
from serving.service import Service

pytestmark = pytest.mark.backends
BOOKS = [
    {"id": "moby", "text": "a captain hunts a white whale", "metadata": {"year": 1851}},
    {"id": "ulysses", "text": "a man walks through a city for a day", "metadata": {"year": 1922}},
]


@pytest.fixture
def books(client: TestClient) -> TestClient:
    client.put("/corpora/books")
    client.post("/corpora/books/documents", json={"documents": BOOKS})
    return client


def ask(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/corpora/books/search", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_words_and_both_over_http(books: TestClient) -> None:
    words = ask(books, query="WHALE", mode="Lexical")
    assert ([hit["id"] for hit in words["hits"]], words["mode"], words["cursor"]) == (["moby"], "lexical", None)
    both = ask(books, query="city", mode="hybrid", fusion="RRF", k=2)
    assert both["hits"][0]["id"] == "ulysses"
    assert both["hits"][0]["lexical"] > 0 and both["hits"][1]["lexical"] is None
    assert ask(books, queries=["whale", "city"], mode="lexical")["results"] == [
        {"hits": ask(books, query=word, mode="lexical")["hits"], "cursor": None} for word in ("whale", "city")
    ]


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_no_query_is_an_error_of_syntax(books: TestClient, mode: str) -> None:
    for query in ['"', "AND", "a OR", "NEAR(", "text:a", "whale*", "-whale", "^a", "(", "\x00", "🐋"]:
        ask(books, query=query, mode=mode)


def test_cursors_over_http(books: TestClient, refuses: Callable[..., None]) -> None:
    first = ask(books, query="a", k=1)
    second = ask(books, query="a", k=1, cursor=first["cursor"])
    assert {first["hits"][0]["id"], second["hits"][0]["id"]} == {"moby", "ulysses"}
    assert ask(books, query="a", k=1, cursor=second["cursor"])["hits"] == []
    for body, says in [
        ({"query": "b", "cursor": first["cursor"]}, "another search"),
        ({"query": "a", "filter": {"year": 1}, "cursor": first["cursor"]}, "another search"),
        ({"query": "a", "mode": "lexical", "cursor": first["cursor"]}, "another search"),
        ({"query": "a", "mode": "hybrid", "cursor": first["cursor"]}, "another search"),
        ({"query": "a", "cursor": "nonsense"}, "not a cursor"),
        ({"query": "a", "cursor": "é"}, "not a cursor"),
        ({"queries": ["a"], "cursor": first["cursor"]}, "does not work with queries"),
        ({"vector": [1.0], "mode": "hybrid"}, "looks for words"),
    ]:
        refuses((422, "Validation", says), "POST", "/corpora/books/search", json=body)


def test_a_filter_of_a_number_beyond_64_bits_has_cursors(books: TestClient) -> None:
    asked = {"query": "a", "filter": {"year": {"$lt": 2**70}}, "k": 1}
    first = ask(books, **asked)
    assert ask(books, **asked, cursor=first["cursor"])["hits"] != first["hits"]


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_each_of_several_queries_has_the_pages_that_it_has_alone(books: TestClient, mode: str) -> None:
    how = {"mode": mode, "k": 1, "filter": {"year": {"$gt": 1800}}}
    words = ["a whale", "a city"]
    together = ask(books, queries=words, **how)["results"]
    for word, first in zip(words, together, strict=True):
        alone = ask(books, query=word, **how)
        assert [hit["id"] for hit in first["hits"]] == [hit["id"] for hit in alone["hits"]]
        assert first["hits"][0]["score"] == pytest.approx(alone["hits"][0]["score"], abs=2e-6)
        assert ask(books, query=word, cursor=first["cursor"], **how)["hits"]
    assert together[0]["cursor"] != together[1]["cursor"]


@pytest.mark.parametrize("others", ["", ', "cursor": "WyJ4IiwxLDEuMCwxXQ"'])
def test_a_filter_nested_too_deep_is_named(books: TestClient, refuses: Callable[..., None], others: str) -> None:
    body = f'{{"query": "a", "filter": {{"year": {"[" * 950}{"]" * 950}}}{others}}}'
    sent = {"content": body, "headers": {"content-type": "application/json"}}
    refuses((422, "Validation", "filter.year.$eq: nested"), "POST", "/corpora/books/search", **sent)


@pytest.mark.parametrize(("method", "path"), [("POST", "search"), ("DELETE", "documents")])
def test_a_filter_of_too_many_fields_is_none(
    books: TestClient, refuses: Callable[..., None], method: str, path: str
) -> None:
    body = {"filter": {f"f{i}": 1 for i in range(MAX_CONDITIONS + 1)}} | ({"query": "a"} if path == "search" else {})
    refuses((422, "Validation", "at most 1000 items"), method, f"/corpora/books/{path}", json=body)


@pytest.mark.parametrize(
    ("body", "others"),
    [
        (
            {"query": "a", "mode": "hybrid", "fusion": "weighted", "alpha": 0.25},
            [{"fusion": "rrf", "alpha": 0.5}, {"alpha": 0.75}],
        ),
        ({"vector": [1.0] * 64}, [{"vector": [1.0] * 63 + [-1.0]}]),
    ],
)
def test_a_cursor_is_of_one_ranking(
    books: TestClient, refuses: Callable[..., None], body: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    next_page = {**body, "k": 1, "cursor": ask(books, **body, k=1)["cursor"]}
    assert ask(books, **next_page)["hits"]
    for other in others:
        refuses((422, "Validation", "another search"), "POST", "/corpora/books/search", json=next_page | other)


def test_an_offset_reaches_as_far_as_the_server_lets_a_search_reach(
    make_service: Callable[..., Service], wait_until_ready: Callable[[TestClient], None]
) -> None:
    with TestClient(create_app(make_service(max_search_hits=20_000))) as client:
        wait_until_ready(client)
        client.put("/corpora/books")
        client.post("/corpora/books/documents", json={"documents": BOOKS})
        assert ask(client, query="a", offset=19_990)["hits"] == []
        beyond = client.post("/corpora/books/search", json={"query": "a", "offset": 19_991})
        assert beyond.status_code == 413, beyond.text


def test_a_cursor_is_of_one_corpus(books: TestClient, refuses: Callable[..., None]) -> None:
    """Its key would hide hits of another one."""
    books.put("/corpora/others")
    books.post("/corpora/others/documents", json={"documents": BOOKS})
    body = {"query": "a", "k": 1, "cursor": ask(books, query="a", k=1)["cursor"]}
    of_another = (422, "Validation", "belongs to another search")
    refuses(of_another, "POST", "/corpora/others/search", json=body)
    refuses(of_another, "POST", "/search", json=body | {"corpus": "others"})
    named = books.post("/search", json=body | {"corpus": "books"}).json()
    assert named["hits"] == ask(books, **body)["hits"]


def _made_anew(client: TestClient) -> None:
    client.delete("/corpora/books").raise_for_status()
    client.put("/corpora/books")
    client.post("/corpora/books/documents", json={"documents": BOOKS})


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_a_cursor_ends_with_its_corpus(books: TestClient, refuses: Callable[..., None], mode: str) -> None:
    """Keys begin anew in one that takes its name: hits would be passed over."""
    body = {"query": "a", "mode": mode, "k": 1}
    body["cursor"] = ask(books, **body)["cursor"]
    listed = books.get("/corpora/books/documents?limit=1").json()["cursor"]
    _made_anew(books)
    ended = (422, "Validation", "cursor: is from a time before")
    refuses(ended, "POST", "/corpora/books/search", json=body)
    refuses(ended, "GET", f"/corpora/books/documents?limit=1&cursor={listed}")


def test_a_cursor_of_a_corpus_that_is_empty_now(books: TestClient, refuses: Callable[..., None]) -> None:
    body = {"query": "a", "k": 1, "cursor": ask(books, query="a", k=1)["cursor"]}
    books.delete("/corpora/books").raise_for_status()
    books.put("/corpora/books")
    refuses((422, "Validation", "cursor: is from a time before"), "POST", "/corpora/books/search", json=body)


def test_corpora_in_pages(client: TestClient, refuses: Callable[..., None]) -> None:
    """Also behind one that is gone by then, and no page behind the last."""
    for name in ("d", "B", "a", "c", "e"):
        client.put(f"/corpora/{name}").raise_for_status()

    def page(**query: Any) -> tuple[list[str], str | None]:
        answer = client.get("/corpora", params=query)
        assert answer.status_code == 200, answer.text
        return [corpus["name"] for corpus in answer.json()["corpora"]], answer.json()["cursor"]

    assert page() == (["B", "a", "c", "d", "e"], None)
    names, cursor = page(limit=2)
    assert names == ["B", "a"] and cursor is not None
    client.delete("/corpora/a").raise_for_status()
    names, cursor = page(limit=2, cursor=cursor)
    assert names == ["c", "d"] and cursor is not None
    assert page(limit=1, cursor=cursor) == (["e"], None)
    assert page(cursor="B") == (["c", "d", "e"], None)
    refuses((422, "Validation", "cursor: 'a/b' is not a corpus name"), "GET", "/corpora", params={"cursor": "a/b"})
    refuses((422, "Validation", "limit"), "GET", "/corpora", params={"limit": 0})
