"""Tests of expiring documents, and of sorted lists of documents, over HTTP and in commands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving import service
from serving.__main__ import main
from serving.app import create_app
from serving.corpora.corpora import Corpora
from serving.service import Service
from tests.conftest import PATIENCE
from tests.serving.conftest import Command
from tests.serving.corpora.ingest.uploading import DOCUMENTS, ended, of

Refuses = Callable[..., None]
LATER, EARLIER = "2999-01-31T08:30:00Z", "1999-01-31T08:30:00Z"


@pytest.fixture
def corpus(client: TestClient) -> TestClient:
    client.put("/corpora/c").raise_for_status()
    return client


def documents(client: TestClient, **query: Any) -> dict[str, dict[str, Any]]:
    listed = client.get(DOCUMENTS, params=query).raise_for_status().json()["documents"]
    return {document.pop("id"): document for document in listed}


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


ROWS: list[dict[str, Any]] = [
    {"id": "a", "text": "one", "expires_at": LATER},
    {"id": "b", "text": "two", "expires_at": EARLIER},
    {"id": "c", "text": "three", "expires_at": None},
]


@pytest.mark.backends
@pytest.mark.parametrize(
    ("media", "content"),
    [
        ("application/json", json.dumps({"documents": ROWS}).encode()),
        ("application/x-ndjson", lines(ROWS)),
        ("text/csv", f"id,text,Expires_At\na,one,{LATER}\nb,two,{EARLIER}\nc,three,\n".encode()),
    ],
)
@pytest.mark.parametrize("in_background", [False, True])
def test_every_upload_has_times(corpus: TestClient, media: str, content: bytes, *, in_background: bool) -> None:
    answer = corpus.post(f"{DOCUMENTS}?async={str(in_background).lower()}", content=content, headers=of(media))
    assert answer.status_code == (202 if in_background else 200), answer.text
    if in_background:
        assert ended(corpus, answer.headers["location"])["state"] == "succeeded"
    there = documents(corpus)
    assert there == {"a": {"text": "one", "metadata": {}, "expires_at": LATER}, "c": {"text": "three", "metadata": {}}}
    assert corpus.get(f"{DOCUMENTS}/a").json()["expires_at"] == LATER
    assert "expires_at" not in corpus.get(f"{DOCUMENTS}/c").json()
    assert corpus.get(f"{DOCUMENTS}/b").status_code == 404
    hits = corpus.post("/corpora/c/search", json={"query": "two", "total": True}).json()
    assert ({hit["id"] for hit in hits["hits"]}, hits["total"]) == ({"a", "c"}, 2)
    assert corpus.get("/corpora/c").json()["documents"] == 2


def test_tables_have_times(corpus: TestClient) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from tests.serving.corpora.ingest.readers import files

    at = datetime(2999, 1, 31, 9, 30, tzinfo=UTC)
    typed = pyarrow.array([at, None], pyarrow.timestamp("us", "UTC"))
    table = pyarrow.table({"id": ["a", "b"], "text": ["one", "two"], "expires_at": typed})
    corpus.post(DOCUMENTS, content=files.parquet(table), headers=of("application/x-parquet")).raise_for_status()
    assert documents(corpus)["a"]["expires_at"] == "2999-01-31T09:30:00Z"
    local = pyarrow.table({"text": ["one"], "expires_at": [at.replace(tzinfo=None)]})
    refused = corpus.post(DOCUMENTS, content=files.parquet(local), headers=of("application/x-parquet"))
    assert (refused.status_code, "row 1.expires_at: must be a timestamp" in refused.text) == (422, True)


def test_a_wrong_time_is_named(corpus: TestClient, refuses: Refuses) -> None:
    for wrong in ("tomorrow", 1_900_000_000, "2030-01-31", "2030-01-31T08:30:00"):
        sent = [{"text": "a"}, {"text": "b", "expires_at": wrong}]
        says = "documents.1.expires_at: must be a timestamp with a time and an offset"
        refuses((422, "Validation", says), "POST", DOCUMENTS, json=sent)
    refuses(
        (422, "Validation", "line 2.expires_at: must be a timestamp"),
        "POST",
        DOCUMENTS,
        content="text,expires_at\na,soon\n",
        headers=of("text/csv"),
    )
    corpus.post(DOCUMENTS, json=[{"id": "a", "text": "a"}]).raise_for_status()
    refuses((422, "Validation", "expires_at: must be"), "PATCH", f"{DOCUMENTS}/a", json={"expires_at": "soon"})
    for beyond in ("9999-12-31T23:59:59-10:00", "2030-01-31T08:30:60Z", "2030-02-30T08:30:00Z"):
        says = "expires_at: must be an existing date in the years 1 to 9999"
        refuses((422, "Validation", says), "PATCH", f"{DOCUMENTS}/a", json={"expires_at": beyond})
    refuses((422, "Validation", "give metadata, expires_at or both"), "PATCH", f"{DOCUMENTS}/a", json={})
    refuses((422, "Validation", "give metadata, expires_at or both"), "PATCH", DOCUMENTS, json={"ids": ["a"]})


@pytest.mark.backends
def test_a_patch_changes_the_time(corpus: TestClient) -> None:
    corpus.post(DOCUMENTS, json=[{"id": name, "text": name, "metadata": {"n": 1}} for name in "abc"]).raise_for_status()
    patched = corpus.patch(f"{DOCUMENTS}/a", json={"expires_at": "2999-01-31T09:30:00+01:00"})
    assert patched.json() == {"id": "a", "text": "a", "metadata": {"n": 1}, "expires_at": LATER}
    assert corpus.patch(f"{DOCUMENTS}/a", json={"metadata": {"n": 2}}).json()["expires_at"] == LATER
    assert "expires_at" not in corpus.patch(f"{DOCUMENTS}/a", json={"expires_at": None}).json()
    many = corpus.patch(DOCUMENTS, json={"ids": ["a", "b"], "metadata": {"n": 3}, "expires_at": EARLIER})
    assert many.json() == {"patched": 2}
    assert list(documents(corpus)) == ["c"]
    assert corpus.patch(f"{DOCUMENTS}/b", json={"expires_at": None}).status_code == 404
    assert corpus.patch(f"{DOCUMENTS}/c", json={"expires_at": EARLIER}).status_code == 204
    assert not documents(corpus)


@pytest.mark.slow
def test_expired_documents_are_removed_in_time(
    make_service: Callable[..., Service],
    wait_until_ready: Callable[[TestClient], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(service, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr("serving.corpora.corpora.REMOVED_TOGETHER", 7)
    with TestClient(create_app(served := make_service())) as client:
        wait_until_ready(client)
        client.put("/corpora/c").raise_for_status()
        soon = (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat()
        rows = [{"id": f"d{i}", "text": f"text {i}", "expires_at": soon if i % 2 else None} for i in range(100)]
        client.post(DOCUMENTS, json=rows).raise_for_status()
        assert client.get("/corpora/c").json()["documents"] == 100
        assert isinstance(served.library.corpora, Corpora)
        store = served.library.corpora._store
        deadline = time.monotonic() + PATIENCE
        while store.size("c").documents > 50:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert {*documents(client)} == {f"d{i}" for i in range(0, 100, 2)}
        assert store.size("c") == store.described("c")[1]
        assert served.library.corpora.verify("c") == []


@pytest.mark.slow
def test_commands_keep_times(command: Command, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(ROWS))
    assert command("ingest", str(tmp_path / "in.jsonl"), "--corpus", "a") == 0
    assert main(["copy", f"{tmp_path / 'var'}#a", f"{tmp_path / 'var'}#b"]) == 0
    assert "2 documents" in capsys.readouterr().out
    exported = []
    for name in ("a", "b"):
        assert command("export", "--corpus", name) == 0
        exported.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert exported[0] == exported[1]
    assert {one["id"]: one.get("expires_at") for one in exported[0]} == {"a": LATER, "c": None}


# Sorted lists.


@pytest.mark.backends
def test_a_list_is_sorted_page_by_page(corpus: TestClient, refuses: Refuses) -> None:
    rows: list[dict[str, Any]] = [
        {"id": f"d{i:02}", "text": "t", "metadata": {"n": i % 3, "k": "xy"[i % 2]}} for i in range(20)
    ]
    corpus.post(DOCUMENTS, json=[*rows, {"id": "z", "text": "t"}]).raise_for_status()
    expected = sorted(rows, key=lambda row: (-row["metadata"]["n"], row["metadata"]["k"]))
    whole = corpus.get(DOCUMENTS, params={"sort": "n:desc,k:asc"}).json()
    assert [one["id"] for one in whole["documents"]] == [*(row["id"] for row in expected), "z"]
    assert (whole["cursor"], whole["count"]) == (None, 21)
    query: dict[str, Any] = {"sort": "n:desc,k:asc", "limit": 4, "filter": json.dumps({"n": {"$exists": True}})}
    read, cursor = list[str](), None
    while True:
        page = corpus.get(DOCUMENTS, params=query | ({"cursor": cursor} if cursor else {})).json()
        read += [one["id"] for one in page["documents"]]
        if not cursor:
            corpus.delete(f"{DOCUMENTS}/{read[-1]}").raise_for_status()  # The next page begins after this document.
        if (cursor := page["cursor"]) is None:
            break
        other = query | {"cursor": cursor, "sort": "n:asc"}
        refuses((422, "Validation", "cursor: belongs to a list in another order"), "GET", DOCUMENTS, params=other)
    assert read == [row["id"] for row in expected]
    assert corpus.get(DOCUMENTS, params={"sort": "n:asc", "limit": 0}).json()["count"] == 20
    refuses((422, "Validation", "sort.0: must be a field and asc or desc"), "GET", DOCUMENTS, params={"sort": "n"})
    refuses((422, "Validation", "9 fields"), "GET", DOCUMENTS, params={"sort": ",".join(["n:asc"] * 9)})


# Distances.

CITIES = {"munich": (48.14, 11.58), "vienna": (48.21, 16.37), "suva": (-18.14, 178.44), "apia": (-13.83, -171.77)}


@pytest.fixture
def cities(corpus: TestClient) -> TestClient:
    rows = [
        {"id": name, "text": name, "metadata": {"at": {"lat": lat, "lon": lon}}} for name, (lat, lon) in CITIES.items()
    ]
    corpus.post(DOCUMENTS, json=[*rows, {"id": "nowhere", "text": "nowhere"}]).raise_for_status()
    return corpus


def near(name: str) -> dict[str, float]:
    return dict(zip(("lat", "lon"), CITIES[name], strict=True))


def test_documents_are_found_by_distance(cities: TestClient, refuses: Refuses) -> None:
    for name, metres, expected in (
        ("munich", 400_000, {"munich", "vienna"}),
        ("munich", 300_000, {"munich"}),
        ("suva", 1_200_000, {"suva", "apia"}),
    ):
        where = {"at": {"$near": {**near(name), "within_m": metres}}}
        hits = cities.post("/corpora/c/search", json={"query": "a city", "filter": where}).json()["hits"]
        assert {hit["id"] for hit in hits} == expected
        assert {*documents(cities, filter=json.dumps(where))} == expected
    wrong = {"query": "a", "filter": {"at": {"$near": {"lat": 1, "lng": 2, "within_m": 3}}}}
    says = "filter.at.$near: must be an object with lat, lon (degrees) and within_m (metres)"
    refuses((422, "Validation", says), "POST", "/corpora/c/search", json=wrong)
    misspelt = {"query": "a", "filter": {"ta": {"$near": {"lat": 1, "lon": 2, "within_m": 3}}}}
    (warning,) = cities.post("/corpora/c/search", json=misspelt).json()["warnings"]
    assert "no document has the field 'ta'" in warning


@pytest.mark.backends
def test_hits_are_sorted_by_distance(cities: TestClient, refuses: Refuses) -> None:
    asked = {"query": "a city", "sort": [{"field": "at", "near": near("suva")}]}
    hits = cities.post("/corpora/c/search", json=asked).json()["hits"]
    assert [hit["id"] for hit in hits] == ["suva", "apia", "vienna", "munich", "nowhere"]
    asked = {"query": "a city", "sort": [{"field": "at", "near": near("suva"), "order": "desc"}]}
    hits = cities.post("/corpora/c/search", json=asked).json()["hits"]
    assert [hit["id"] for hit in hits] == ["munich", "vienna", "apia", "suva", "nowhere"]
    wrong = {"query": "a", "sort": [{"field": "at", "near": {"lat": 91, "lon": 0}}]}
    refuses((422, "Validation", "lat"), "POST", "/corpora/c/search", json=wrong)


@pytest.mark.backends("milvus")
def test_milvus_has_no_filter_by_distance(cities: TestClient, refuses: Refuses) -> None:
    asked = {"query": "a", "filter": {"at": {"$near": {**near("munich"), "within_m": 9}}}}
    refuses((422, "Validation", "corpora on Milvus do not support $near"), "POST", "/corpora/c/search", json=asked)
