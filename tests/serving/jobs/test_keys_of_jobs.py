"""Whose jobs a key sees, and who may cancel them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.keys.keys import Key, changed_keys, digest
from serving.service import Service

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
