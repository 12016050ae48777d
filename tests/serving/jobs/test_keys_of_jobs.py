"""Tests of the jobs that a key sees and may cancel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.jobs.job import MAX_ERROR, MAX_PLACE, Job
from serving.jobs.ledger import Ledger
from serving.operations.keys import Key, changed_keys, digest
from serving.service import Service
from tests.conftest import PATIENCE

BODY = b'{"text": "a"}\n' * 300


@pytest.fixture
def guarded(
    tmp_path: Path, make_service: Callable[..., Service], wait_until_ready: Callable[[TestClient], None]
) -> Iterator[TestClient]:
    file = tmp_path / "keys.json"
    with changed_keys(file) as keys:
        keys.append(Key(name="all", sha256=digest("all"), scopes=("read", "write")))
        keys.append(Key(name="reader", sha256=digest("reader"), scopes=("read",)))
        keys.append(Key(name="tenant", sha256=digest("tenant"), scopes=("read", "write"), corpora=("acme-*",)))
    with TestClient(create_app(make_service(api_keys_file=file)), raise_server_exceptions=False) as client:
        wait_until_ready(client)
        yield client


def upload(client: TestClient, corpus: str, name: str, **more: str) -> str:
    headers = {"authorization": f"Bearer {name}", "content-type": "application/x-ndjson", **more}
    client.put(f"/corpora/{corpus}", headers={"authorization": "Bearer all"})
    answer = client.post(f"/corpora/{corpus}/documents", content=BODY, headers=headers)
    assert answer.status_code == 202, answer.text
    return str(answer.headers["location"])


def test_jobs_of_other_corpora_are_not_there(guarded: TestClient) -> None:
    own, other = upload(guarded, "acme-1", "tenant"), upload(guarded, "secret", "all")
    tenant = {"authorization": "Bearer tenant"}
    assert [f"/jobs/{job['id']}" for job in guarded.get("/jobs", headers=tenant).json()["jobs"]] == [own]
    assert guarded.get(own, headers=tenant).status_code == 200
    for method, path in (("GET", other), ("GET", f"{other}/events"), ("DELETE", other)):
        answer = guarded.request(method, path, headers=tenant)
        assert (answer.status_code, "secret" in answer.text) == (404, False)
    assert len(guarded.get("/jobs", headers={"authorization": "Bearer all"}).json()["jobs"]) == 2


def test_to_look_is_reading_and_to_cancel_is_not(guarded: TestClient) -> None:
    job, reader = upload(guarded, "c", "all"), {"authorization": "Bearer reader"}
    assert guarded.get("/jobs").status_code == 401
    assert guarded.get(job, headers=reader).status_code == 200
    answer = guarded.delete(job, headers=reader)
    assert (answer.status_code, "lacks the scope 'write'" in answer.text) == (403, True)
    assert guarded.delete(job, headers={"authorization": "Bearer all"}).status_code == 200


def test_the_same_idempotency_key_of_another_caller_is_another(guarded: TestClient) -> None:
    first = upload(guarded, "acme-1", "all", **{"idempotency-key": "k"})
    while guarded.get(first, headers={"authorization": "Bearer all"}).json()["state"] in ("queued", "running"):
        pass
    assert upload(guarded, "acme-1", "tenant", **{"idempotency-key": "k"}) != first
    assert upload(guarded, "acme-1", "all", **{"idempotency-key": "k"}) == first


def test_jobs_are_listed_in_pages_and_by_corpus(guarded: TestClient) -> None:
    own, tenant = list[str](), {"authorization": "Bearer tenant"}
    for n in range(5):
        guarded.put(f"/corpora/acme-{n % 2}", headers=tenant)
        path, body = f"/corpora/acme-{n % 2}/documents?async=true", {"documents": [{"text": f"number {n}"}]}
        own.append(guarded.post(path, json=body, headers=tenant).headers["location"])
    upload(guarded, "secret", "all")
    listed, query = list[str](), "?limit=2"
    for _ in range(3):
        page = guarded.get(f"/jobs{query}", headers=tenant).json()
        listed += [f"/jobs/{job['id']}" for job in page["jobs"]]
        query = f"?limit=2&cursor={page['cursor']}"
    assert (listed, page["cursor"]) == (own[::-1], None)
    found = guarded.get("/jobs?corpus=acme-1", headers=tenant).json()
    assert ([f"/jobs/{job['id']}" for job in found["jobs"]], found["cursor"]) == ([own[3], own[1]], None)
    assert guarded.get("/jobs?corpus=secret", headers=tenant).status_code == 403
    for wrong in ("limit=0", "limit=101", "corpus=../x", f"cursor={'c' * 65}", "cursor=gone"):
        assert guarded.get(f"/jobs?{wrong}", headers=tenant).status_code == 422, wrong


def test_nothing_of_another_key_s_jobs_is_read_for_a_list(guarded: TestClient, tmp_path: Path) -> None:
    own, other = upload(guarded, "acme-1", "tenant"), upload(guarded, "secret", "all")
    everything = {"authorization": "Bearer all"}
    for job in (own, other):
        while guarded.get(job, headers=everything).json()["state"] in ("queued", "running"):
            pass
    service: Service = guarded.app_state["service"]
    with service.jobs._ledger.transaction() as connection:  # Reading this job is now an error.
        connection.execute("UPDATE jobs SET errors = '[' WHERE corpus = 'secret'")
    answer = guarded.get("/jobs", headers={"authorization": "Bearer tenant"})
    assert [f"/jobs/{job['id']}" for job in answer.json()["jobs"]] == [own]
    assert guarded.get("/jobs", headers=everything).status_code == 503


def test_lists_of_jobs_are_read_in_the_threads_of_the_key(guarded: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant, everything = ({"authorization": f"Bearer {name}"} for name in ("tenant", "all"))
    begun, finish, reads = threading.Event(), threading.Event(), list[bool]()
    newest = Ledger.newest

    def slow(ledger: Ledger, of: Callable[[str], bool], *arguments: Any) -> list[Job]:
        if not of("secret"):  # The request is the tenant's own.
            reads.append(True)
            begun.set()
            assert finish.wait(PATIENCE)
        return newest(ledger, of, *arguments)

    monkeypatch.setattr(Ledger, "newest", slow)
    with ThreadPoolExecutor(8) as pool:
        lists = [pool.submit(guarded.get, "/jobs", headers=tenant) for _ in range(8)]
        assert begun.wait(PATIENCE)
        try:
            for _ in range(10):
                assert guarded.get("/jobs", headers=everything).status_code == 200
            service: Service = guarded.app_state["service"]
            assert len(reads) <= service.settings.key_limits.threads
        finally:
            finish.set()
        assert [one.result().status_code for one in lists] == [200] * 8


def test_what_is_kept_of_an_error_is_bounded(guarded: TestClient) -> None:
    headers = {"authorization": "Bearer tenant", "content-type": "application/x-ndjson"}
    guarded.put("/corpora/acme-1", headers=headers)
    path = "/corpora/acme-1/documents?async=true&on_error=skip"
    for option, least in (("text_column", 257), ("id_column", 257), ("column_types", 8193)):
        answer = guarded.post(f"{path}&{option}={'t' * least}", content=BODY, headers=headers)
        assert (answer.status_code, len(answer.content) < 200) == (422, True)
        assert answer.json()["error"].startswith(option)
    answer = guarded.post(f"{path}&text_column={'t' * 256}", content=BODY, headers=headers)
    while (job := guarded.get(answer.headers["location"], headers=headers)).json()["state"] in ("queued", "running"):
        pass
    found = job.json()
    assert (found["error_count"], len(found["errors"])) == (300, 100)
    assert all(len(error["place"]) <= MAX_PLACE and len(error["error"]) <= MAX_ERROR for error in found["errors"])
    assert found["errors"][0]["error"].endswith("…")


@pytest.mark.parametrize("path", [f"/jobs/{'x' * 60_000}", f"/corpora/{'x' * 60_000}", f"/nothing/{'x' * 60_000}"])
def test_no_error_repeats_all_of_a_path(guarded: TestClient, path: str) -> None:
    answer = guarded.get(path, headers={"authorization": "Bearer all"})
    assert answer.status_code in (404, 422) and len(answer.content) < 1000
