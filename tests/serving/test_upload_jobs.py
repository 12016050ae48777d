"""Tests of uploads that become jobs, and of idempotency keys for safe retries."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.corpora.corpora import Corpora
from serving.corpora.stores.sqlite import SqliteStore
from serving.jobs import Requests
from serving.operations.files import disk_errors
from serving.service import Service
from tests.conftest import PATIENCE
from tests.serving.corpora.ingest.uploading import DOCUMENTS, NDJSON, ended, lines, stored
from tests.serving.engines import Gate, model

Refuses = Callable[..., None]
MakeService = Callable[..., Service]
Waits = Callable[[TestClient], None]


@pytest.fixture(autouse=True)
def corpus(client: TestClient) -> None:
    client.put("/corpora/c")


def test_more_than_a_few_become_a_job(client: TestClient) -> None:
    assert client.post(DOCUMENTS, content=lines(256), headers=NDJSON).status_code == 200
    answer = client.post(DOCUMENTS, content=lines(257, metadata={"n": 1}), headers=NDJSON)
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    assert (job["kind"], job["corpus"], job["done"], job["result"]) == ("ingest", "c", 0, None)
    done = ended(client, answer.headers["location"])
    assert (done["state"], done["done"], done["total"], done["errors"]) == ("succeeded", 257, 257, [])
    assert done["result"]["count"] == 257
    assert stored(client) == 257
    assert client.post("/corpora/c/search", json={"query": "text 250", "k": 1}).json()["hits"][0]["id"] == "d250"


def test_a_few_become_a_job_where_that_is_asked_for(client: TestClient) -> None:
    answer = client.post(f"{DOCUMENTS}?async=true", content=b'{"text": "a"}\n' * 3, headers=NDJSON)
    assert answer.status_code == 202
    assert ended(client, answer.headers["location"])["state"] == "succeeded"
    assert stored(client) == 3


def test_a_bad_row_of_a_job_is_told_and_nothing_is_kept(client: TestClient) -> None:
    body = lines(300) + b"{oops\n"
    job = ended(client, client.post(DOCUMENTS, content=body, headers=NDJSON).headers["location"])
    assert (job["state"], job["errors"][0]["place"], stored(client)) == ("failed", "line 301", 0)
    location = client.post(f"{DOCUMENTS}?on_error=skip", content=body, headers=NDJSON).headers["location"]
    job = ended(client, location)
    assert (job["state"], job["error_count"], stored(client)) == ("succeeded", 1, 300)


def test_events_and_listing(client: TestClient) -> None:
    location = client.post(DOCUMENTS, content=lines(2000), headers=NDJSON).headers["location"]
    with client.stream("GET", f"{location}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = [event for event in "".join(stream.iter_text()).split("\n\n") if event]
    assert all(event.startswith("event: progress\ndata: {") for event in events)
    last = json.loads(events[-1].partition("data: ")[2])
    assert (last["state"], last["done"]) == ("succeeded", 2000)
    listed = client.get("/jobs").json()["jobs"]
    assert listed[0]["id"] == last["id"]
    assert client.get(location).json() == listed[0]


def test_the_head_of_events_does_not_wait_for_the_job(
    make_service: Callable[..., Service], wait_until_ready: Callable[[TestClient], None]
) -> None:
    engine = Gate()
    engine.open.set()
    with TestClient(create_app(make_service(model(lambda _: engine)))) as client, ThreadPoolExecutor(1) as pool:
        wait_until_ready(client)
        client.put("/corpora/c")
        engine.open.clear()
        location = client.post(DOCUMENTS, content=lines(300), headers=NDJSON).headers["location"]
        try:
            head = pool.submit(client.head, f"{location}/events").result(PATIENCE)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-type"].startswith("text/event-stream")
            assert client.get(location).json()["state"] in ("queued", "running")
        finally:
            engine.open.set()


def test_jobs_that_are_not_there(refuses: Refuses) -> None:
    for method, path in (("GET", "/jobs/x"), ("GET", "/jobs/x/events"), ("DELETE", "/jobs/x")):
        refuses((404, "NotFound", "there is no job 'x'"), method, path)


def test_a_job_can_be_cancelled_and_the_same_again_is_a_conflict(client: TestClient) -> None:
    body = lines(20_000)
    first = client.post(DOCUMENTS, content=body, headers=NDJSON)
    again = client.post(DOCUMENTS, content=body, headers={**NDJSON, "Idempotency-Key": "another"})
    assert (again.status_code, again.json()["error_type"], again.json()["job"]) == (409, "Conflict", first.json()["id"])
    assert again.headers["location"] == first.headers["location"]
    cancelled = client.delete(first.headers["location"])
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    assert client.delete(first.headers["location"]).json() == cancelled.json()
    kept = stored(client)
    assert kept < 20_000
    time.sleep(0.05)
    assert stored(client) == kept


@pytest.mark.slow
def test_what_is_written_and_deleted_after_an_upload_was_accepted_stays(client: TestClient) -> None:
    def text_of(id: str) -> str | None:
        answer = client.get(f"{DOCUMENTS}/{id}")
        return None if answer.status_code == 404 else str(answer.json()["text"])

    client.post(DOCUMENTS, content=lines(200), headers=NDJSON).raise_for_status()
    first, second = (
        client.post(DOCUMENTS, content=lines(count, metadata={"of": count}), headers=NDJSON) for count in (4000, 300)
    )
    changed = {"documents": [{"id": f"d{i}", "text": "newer"} for i in (0, 199)]}
    client.post(DOCUMENTS, json=changed).raise_for_status()
    assert client.delete(f"{DOCUMENTS}/d1").status_code == 204
    jobs = [ended(client, answer.headers["location"]) for answer in (first, second)]
    assert [(job["state"], job["done"]) for job in jobs] == [("succeeded", 4000), ("succeeded", 300)]
    assert [text_of(f"d{i}") for i in (0, 1, 2, 199)] == ["newer", None, "text 2", "newer"]
    assert client.get(f"{DOCUMENTS}/d2").json()["metadata"] == {"of": 300}, "the later upload counts"
    found = client.post("/corpora/c/search", json={"query": "text 1", "k": 10}).json()["hits"]
    assert "d1" not in {hit["id"] for hit in found}
    later = client.post(DOCUMENTS, content=lines(299), headers=NDJSON)
    assert ended(client, later.headers["location"])["state"] == "succeeded"
    assert text_of("d1") == "text 1", "an upload that was accepted after that"


def test_an_upload_that_its_corpus_did_not_know_of_counts_from_when_it_is_begun(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start an upload that its corpus has not recorded, because it could not be told or is another file since."""
    accept, told, noted, go_on = SqliteStore.accept, list[str](), threading.Event(), threading.Event()

    def once_more(store: SqliteStore, name: str, job: str) -> None:
        told.append(job)
        if len(told) > 1:
            accept(store, name, job)
            noted.set()
            assert go_on.wait(PATIENCE)

    monkeypatch.setattr(SqliteStore, "accept", once_more)
    location = client.post(DOCUMENTS, content=lines(300), headers=NDJSON).headers["location"]
    assert noted.wait(PATIENCE)
    client.post(DOCUMENTS, json={"documents": [{"id": "d7", "text": "newer"}]}).raise_for_status()
    go_on.set()
    assert ended(client, location)["state"] == "succeeded"
    assert client.get(f"{DOCUMENTS}/d7").json()["text"] == "newer"


def test_a_corpus_that_is_deleted_takes_its_jobs_along(client: TestClient) -> None:
    places = [
        client.post(f"{DOCUMENTS}?on_error={how}", content=lines(20_000), headers=NDJSON).headers["location"]
        for how in ("fail", "skip")
    ]
    assert client.delete("/corpora/c").status_code == 204
    assert client.put("/corpora/c").status_code == 201
    assert [client.get(place).json()["state"] for place in places] == ["cancelled", "cancelled"]
    assert stored(client) == 0
    assert client.delete("/corpora/nope").status_code == 404


def test_nothing_is_accepted_for_a_corpus_that_is_being_deleted(
    client: TestClient, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse uploads to a corpus that is being deleted, which waits for a snapshot: a new corpus would get them."""
    drop = Corpora.drop

    def later(corpora: Corpora, name: str) -> None:
        refuses((409, "Conflict", "'c' is being deleted"), "POST", DOCUMENTS, content=lines(300), headers=NDJSON)
        drop(corpora, name)

    monkeypatch.setattr(Corpora, "drop", later)
    assert client.delete("/corpora/c").status_code == 204
    assert client.put("/corpora/c").status_code == 201
    client.post(DOCUMENTS, content=lines(300), headers=NDJSON).raise_for_status()


def test_a_job_on_a_corpus_that_is_damaged_fails_and_says_why(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def malformed(*_: object) -> None:
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        with disk_errors(Path("c.sqlite")):
            raise error

    monkeypatch.setattr(SqliteStore, "write", malformed)
    job = ended(client, client.post(DOCUMENTS, content=lines(300), headers=NDJSON).headers["location"])
    assert (job["state"], job["errors"][-1]["error"]) == ("failed", "c.sqlite: database disk image is malformed")


def test_a_key_makes_a_retry_safe(client: TestClient, refuses: Refuses) -> None:
    body, headers = b'{"text": "a"}\n{"text": "b"}\n', {**NDJSON, "Idempotency-Key": "one"}
    first, second = (client.post(DOCUMENTS, content=body, headers=headers) for _ in range(2))
    assert first.json() == second.json()
    assert first.headers["x-truncated-inputs"] == second.headers["x-truncated-inputs"]
    assert stored(client) == 2
    refuses((422, "Validation", "Idempotency-Key: another request"), "POST", DOCUMENTS, content=b"{}", headers=headers)
    refuses(
        (422, "Validation", "Idempotency-Key: must be 1 to 255"),
        "POST",
        DOCUMENTS,
        content=body,
        headers={**NDJSON, "Idempotency-Key": "k" * 256},
    )
    assert client.post(DOCUMENTS, content=body, headers=NDJSON).json() != first.json()


def test_a_key_of_a_job(client: TestClient) -> None:
    headers = {**NDJSON, "Idempotency-Key": "job"}
    first = client.post(DOCUMENTS, content=lines(300), headers=headers)
    ended(client, first.headers["location"])
    second = client.post(DOCUMENTS, content=lines(300), headers=headers)
    assert (second.status_code, second.content, second.headers["location"]) == (
        202,
        first.content,
        first.headers["location"],
    )
    assert stored(client) == 300


def test_a_key_says_nothing_of_a_corpus_that_was_made_anew(client: TestClient) -> None:
    """Recreate a corpus between two uploads with one key. The second upload must not be answered from the first."""
    headers = {**NDJSON, "Idempotency-Key": "load"}
    for _ in range(2):
        assert client.post(DOCUMENTS, content=lines(2), headers=headers).status_code == 200
        assert stored(client) == 2
        assert client.delete("/corpora/c").status_code == 204
        client.put("/corpora/c").raise_for_status()


def test_a_key_of_a_job_that_failed_is_free(client: TestClient) -> None:
    sent: dict[str, Any] = {
        "content": lines(300) + b'{"txt": "a"}\n',
        "headers": {**NDJSON, "Idempotency-Key": "failing"},
    }
    failed = client.post(DOCUMENTS, **sent).headers["location"]
    assert ended(client, failed)["state"] == "failed"
    assert client.post(DOCUMENTS, **sent).headers["location"] != failed


def test_a_key_whose_request_failed_is_free(client: TestClient) -> None:
    headers = {**NDJSON, "Idempotency-Key": "failed"}
    assert client.post(DOCUMENTS, content=b"{oops\n", headers=headers).status_code == 400
    assert client.post(DOCUMENTS, content=b'{"text": "a"}', headers=headers).status_code == 200


def test_ids_that_are_made_under_a_key_are_the_same_where_the_answer_was_not_noted(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeat an upload after a crash between the commit of the documents and of the answer."""
    body, headers = b'{"text": "a"}\n', {**NDJSON, "Idempotency-Key": "crash"}

    async def crash(*_: Any) -> None:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(Requests, "note", crash)
        assert client.post(DOCUMENTS, content=body, headers=headers).status_code == 500
    assert client.post(DOCUMENTS, content=body, headers=headers).status_code == 200
    assert stored(client) == 1


def test_ids_that_a_job_makes_under_a_key_are_the_same_where_it_is_executed_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, headers = b'{"text": "a"}\n' * 300, {**NDJSON, "Idempotency-Key": "dropped"}
    monkeypatch.setattr(Requests, "keep", lambda *_: None)  # the answers are dropped
    first, second = (
        ended(client, client.post(DOCUMENTS, content=body, headers=headers).headers["location"]) for _ in range(2)
    )
    assert first["id"] != second["id"] and second["state"] == "succeeded"
    assert stored(client) == 300


@pytest.mark.slow
def test_a_job_goes_on_with_the_next_server(
    make_service: Callable[..., Service], wait_until_ready: Callable[[TestClient], None]
) -> None:
    with TestClient(create_app(make_service())) as client:
        wait_until_ready(client)
        client.put("/corpora/c")
        body = b"".join(b'{"text": "text %d"}\n' % i for i in range(5000))
        location = client.post(DOCUMENTS, content=body, headers=NDJSON).headers["location"]
        while not (before := client.get(location).json())["done"]:
            time.sleep(0.001)
        assert before["state"] == "running"
    with TestClient(create_app(make_service())) as client:
        wait_until_ready(client)
        assert ended(client, location)["state"] == "succeeded"
        assert stored(client) == 5000
