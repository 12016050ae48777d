"""What the corpora of a key may take of the disk: it adds no more, and nobody else is kept from anything."""

from __future__ import annotations

import gzip
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.corpora import corpora
from serving.errors import NoRoom, Unhealthy
from serving.jobs.ingestion import BLOCK_DOCUMENTS, IN_FLIGHT
from serving.operations.keys import Key, changed_keys, digest
from serving.operations.limits import Caller, Limits, charged_to
from serving.service import Service
from tests.conftest import PATIENCE
from tests.serving.conftest import service_in

DRAW = random.Random(0)
LARGE = {"documents": [{"text": " ".join(f"{DRAW.getrandbits(40):x}" for _ in range(500))} for _ in range(200)]}
SMALL = {"documents": [{"text": "one more"}]}
LIMIT = 400_000
"""Bytes: an empty corpus or two, and not `LARGE`."""


class Tenants:
    """A server of three keys, and its answers to each."""

    def __init__(self, client: TestClient, service: Service) -> None:
        self.service = service
        self.snapshot = ""
        self._client = client

    def ask(
        self, tenant: str, method: str, path: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Any:
        sent = {"authorization": f"Bearer {tenant}", **(headers or {})}
        return self._client.request(method, path, headers=sent, **options)

    def done(self, tenant: str, method: str, path: str) -> Any:
        """The job that it becomes, ended well."""
        job = self.ask(tenant, method, path)
        assert job.status_code == 202, job.text
        found = self.ended(tenant, job.headers["location"])
        assert found["state"] == "succeeded", found
        return found

    def ended(self, tenant: str, location: str) -> Any:
        until = time.monotonic() + PATIENCE
        while (found := self.ask(tenant, "GET", location).json())["state"] in ("queued", "running"):
            assert time.monotonic() < until, found
            time.sleep(0.01)
        return found

    def used(self, name: str) -> int:
        return self.service.disk_quota.used(lambda one: one == name)


@contextmanager
def tenants_in(folder: Path, wait_until_ready: Callable[[TestClient], None]) -> Iterator[Tenants]:
    file = folder / "keys.json"
    with changed_keys(file) as keys:
        for name, patterns, limit in (("small", ("small-*",), LIMIT), ("large", ("large-*",), None), ("all", None, 1)):
            keys.append(
                Key(name=name, sha256=digest(name), scopes=("read", "write"), corpora=patterns, disk_bytes=limit)
            )
    service = service_in(folder, api_keys_file=file)
    with TestClient(create_app(service)) as client:
        wait_until_ready(client)
        yield Tenants(client, service)


@pytest.fixture
def tenants(wait_until_ready: Callable[[TestClient], None], tmp_path: Path) -> Iterator[Tenants]:
    with tenants_in(tmp_path, wait_until_ready) as tenants:
        yield tenants


@pytest.fixture
def full(tenants: Tenants) -> Tenants:
    return filled(tenants)


@pytest.fixture(scope="module")
def still_full(
    wait_until_ready: Callable[[TestClient], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tenants]:
    """Yield tenants like `full`, whom the tests of this module leave as they are."""
    with tenants_in(tmp_path_factory.mktemp("full"), wait_until_ready) as tenants:
        yield filled(tenants)


def filled(tenants: Tenants) -> Tenants:
    """Take `small`, which begins below its limit, above it."""
    for name in ("small", "large"):
        assert tenants.ask(name, "PUT", f"/corpora/{name}-one").status_code == 201
    tenants.snapshot = tenants.done("small", "POST", "/corpora/small-one/snapshots")["result"]["id"]
    assert tenants.used("small-one") < LIMIT
    assert tenants.ask("small", "POST", "/corpora/small-one/documents", json=LARGE).status_code == 200, "taken whole"
    assert tenants.used("small-one") > LIMIT
    return tenants


@pytest.mark.parametrize(
    ("method", "path", "options"),
    [
        ("POST", "/corpora/small-one/documents", {"json": SMALL}),
        ("POST", "/corpora/small-one/documents?async=true", {"json": SMALL}),
        ("POST", "/corpora/small-one/documents", {"json": SMALL, "headers": {"idempotency-key": "a"}}),
        ("PUT", "/corpora/small-two", {}),
        ("POST", "/corpora/small-one/snapshots", {}),
        ("POST", "/corpora/small-one/documents", {"files": {"file": ("a.txt", b"one more")}}),
        ("PUT", "/corpora/small-one/restore", {"json": {"snapshot": "SNAPSHOT"}}),
        ("PUT", "/corpora/small-one/restore", {"content": b"x", "headers": {"content-type": "application/zstd"}}),
    ],
)
def test_nothing_is_added_to_what_is_full(still_full: Tenants, method: str, path: str, options: dict[str, Any]) -> None:
    before = still_full.used("small-one")
    if "snapshot" in options.get("json", {}):
        options = {"json": {"snapshot": still_full.snapshot}}
    refused = still_full.ask("small", method, path, **options)
    assert refused.status_code == 507, refused.text
    assert refused.json()["error"] == (
        f"the corpora of the key 'small' use {before} of {LIMIT} allowed bytes: delete documents, snapshots or corpora"
    )
    assert refused.json()["error_type"] == "Unhealthy" and "retry-after" not in refused.headers
    assert still_full.ask("small", "GET", "/corpora/small-one").json()["documents"] == 200
    assert still_full.ask("small", "GET", "/corpora").json()["corpora"][0]["name"] == "small-one"
    assert still_full.used("small-one") == before and still_full.used("small-two") == 0


def test_all_else_goes_on(full: Tenants) -> None:
    (one,) = [
        each["id"] for each in full.ask("small", "GET", "/corpora/small-one/documents?limit=1").json()["documents"]
    ]
    assert full.ask("small", "POST", "/corpora/small-one/search", json={"query": "text"}).status_code == 200
    assert full.ask("small", "PUT", "/corpora/small-one", json={"description": "mine"}).status_code == 200, "is there"
    assert full.ask("small", "DELETE", f"/corpora/small-one/documents/{one}").status_code == 204
    full.done("small", "POST", "/corpora/small-one/reembed")
    assert full.ask("large", "POST", "/corpora/large-one/documents", json=LARGE).status_code == 200
    assert full.ask("large", "PUT", "/corpora/large-two").status_code == 201


@pytest.mark.slow
def test_there_is_room_again_when_documents_are_deleted(full: Tenants) -> None:
    path = "/corpora/small-one/documents"
    deleted = full.ask("small", "DELETE", path, json={"filter": {"$not": {"kept": True}}}).json()
    assert deleted["deleted"] == 200
    assert full.used("small-one") < LIMIT
    assert full.ask("small", "POST", path, json=SMALL).status_code == 200


@pytest.mark.slow
def test_documents_deleted_one_by_one_give_back_what_has_gathered(
    full: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "GIVEN_BACK_FROM", 200_000)
    path = "/corpora/small-one/documents"
    ids = [one["id"] for one in full.ask("small", "GET", f"{path}?limit=1000").json()["documents"]]
    sizes = []
    for each in ids:
        assert full.ask("small", "DELETE", f"{path}/{each}").status_code == 204
        sizes.append(full.ask("small", "GET", "/corpora/small-one").json()["bytes"])
    assert 3 < len(set(sizes)) < 50, "not at each"
    assert sizes[-1] < LIMIT


def test_there_is_room_again_when_a_corpus_is_deleted(full: Tenants) -> None:
    kept = full.used("small-one") - full.ask("small", "GET", "/corpora/small-one").json()["bytes"]
    assert full.ask("small", "DELETE", "/corpora/small-one").status_code == 204
    assert full.used("small-one") == kept > 0, "its snapshot"
    assert full.ask("small", "PUT", "/corpora/small-two").status_code == 201
    assert full.ask("small", "POST", "/corpora/small-two/documents", json=SMALL).status_code == 200


def test_it_is_what_the_list_of_corpora_says(still_full: Tenants) -> None:
    assert still_full.used("large-one") == still_full.ask("large", "GET", "/corpora/large-one").json()["bytes"]


def test_a_key_for_all_corpora_counts_all(still_full: Tenants) -> None:
    refused = still_full.ask("all", "PUT", "/corpora/more")
    everything = still_full.service.disk_quota.used(lambda _: True)
    assert refused.status_code == 507 and f"use {everything} of 1 allowed bytes" in refused.json()["error"]
    assert everything == still_full.used("small-one") + still_full.used("large-one")


def test_snapshots_count_also_when_their_corpus_is_gone(tenants: Tenants) -> None:
    tenants.ask("large", "PUT", "/corpora/large-one").raise_for_status()
    tenants.ask("large", "POST", "/corpora/large-one/documents", json=SMALL).raise_for_status()
    corpus = tenants.used("large-one")
    made = tenants.done("large", "POST", "/corpora/large-one/snapshots")["result"]
    assert tenants.used("large-one") == corpus + made["bytes"]
    assert tenants.ask("large", "DELETE", "/corpora/large-one").status_code == 204
    assert tenants.used("large-one") == made["bytes"]


@pytest.mark.parametrize(("query", "status"), [("", 200), ("?async=true", 202)])
def test_what_was_taken_is_told_once_more(tenants: Tenants, query: str, status: int) -> None:
    """It stored all, and went beyond the share: whoever did not hear so asks again."""
    tenants.ask("small", "PUT", "/corpora/small-one").raise_for_status()
    key, path = {"idempotency-key": "once"}, f"/corpora/small-one/documents{query}"
    block = {"documents": [{"text": f"text {i}", "metadata": {"much": "m" * 3000}} for i in range(200)]}
    first = tenants.ask("small", "POST", path, json=block, headers=key)
    assert first.status_code == status
    if status == 202:
        assert tenants.ended("small", first.headers["location"])["state"] == "succeeded"
    assert tenants.used("small-one") > LIMIT
    again = tenants.ask("small", "POST", path, json=block, headers=key)
    assert (again.status_code, again.content) == (status, first.content)
    assert tenants.ask("small", "POST", path, json=SMALL, headers={"idempotency-key": "other"}).status_code == 507


def test_the_same_upload_is_its_job_though_nothing_more_is_taken(
    tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants.ask("small", "PUT", "/corpora/small-one").raise_for_status()
    monkeypatch.setattr(tenants.service.jobs, "_started", False)  # none is begun
    path = "/corpora/small-one/documents?async=true"
    job = tenants.ask("small", "POST", path, json=LARGE)
    assert job.status_code == 202
    again = tenants.ask("small", "POST", path, json=LARGE)
    assert (again.status_code, again.headers["location"]) == (409, job.headers["location"])
    assert tenants.ask("small", "POST", path, json=SMALL).status_code == 507, "the first one waits on disk"


def test_of_jobs_that_were_taken_together_the_later_ones_fail(
    tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants.ask("small", "PUT", "/corpora/small-one").raise_for_status()
    jobs = tenants.service.jobs
    monkeypatch.setattr(jobs, "_started", False)
    path = "/corpora/small-one/documents?async=true"
    uploads = {"documents": LARGE["documents"][:30]}, SMALL
    taken = [tenants.ask("small", "POST", path, json=upload) for upload in uploads]
    assert [one.status_code for one in taken] == [202, 202], "what waits leaves room"
    monkeypatch.setattr(jobs, "_started", True)
    tenants.ask("large", "PUT", "/corpora/large-one").raise_for_status()
    tenants.done("large", "POST", "/corpora/large-one/snapshots")  # begins them, too
    first, second = (tenants.ended("small", one.headers["location"]) for one in taken)
    assert (first["state"], second["state"]) == ("succeeded", "failed")
    assert "the corpora of the key 'small' use" in second["errors"][0]["error"]
    assert tenants.ask("small", "GET", "/corpora/small-one").json()["documents"] == 30


@pytest.mark.slow
def test_a_job_stops_where_there_is_no_room_left_and_keeps_what_it_has_stored(tenants: Tenants) -> None:
    tenants.ask("small", "PUT", "/corpora/small-one").raise_for_status()
    rows = [
        {"id": f"{i:05}", "text": f"text {i}", "metadata": {"much": f"{DRAW.getrandbits(400):x}" * 20}}
        for i in range(20 * BLOCK_DOCUMENTS)
    ]
    body = gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    packed = {"content-type": "application/x-ndjson", "content-encoding": "gzip"}
    job = tenants.ask("small", "POST", "/corpora/small-one/documents", content=body, headers=packed)
    assert job.status_code == 202
    found = tenants.ended("small", job.headers["location"])
    assert found["state"] == "failed" and "the corpora of the key 'small' use" in found["errors"][0]["error"]
    stored = tenants.ask("small", "GET", "/corpora/small-one").json()["documents"]
    assert 0 < stored < len(rows) and stored >= found["done"]
    assert tenants.used("small-one") < LIMIT + (IN_FLIGHT + 2) * BLOCK_DOCUMENTS * 4000


@pytest.mark.slow
def test_a_job_waits_where_it_is_the_disk_that_fails(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants.ask("small", "PUT", "/corpora/small-one").raise_for_status()
    jobs, whole, asked = tenants.service.jobs, tenants.service.jobs.uploaded, 0

    def fails_once(*arguments: Any) -> int:
        nonlocal asked
        asked += 1
        if asked == 3:  # when the request comes, when its job is taken, and when that begins
            raise Unhealthy("the disk fails")
        return whole(*arguments)

    monkeypatch.setattr(jobs, "uploaded", fails_once)
    job = tenants.ask("small", "POST", "/corpora/small-one/documents?async=true", json=SMALL)
    assert job.status_code == 202
    assert tenants.ended("small", job.headers["location"])["state"] == "succeeded" and asked == 4


def test_files_of_an_index_count(tenants: Tenants) -> None:
    tenants.ask("large", "PUT", "/corpora/large-one").raise_for_status()
    before = tenants.used("large-one")
    index = tenants.service.settings.data / "indexes" / "large-one" / "7"
    index.mkdir(parents=True)
    (index / "vectors").write_bytes(b"v" * 12_345)
    assert tenants.used("large-one") == before + 12_345


def test_a_disk_that_fails_is_no_room(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants.ask("small", "PUT", "/corpora/small-one").raise_for_status()

    def fails(*_: object) -> None:
        raise Unhealthy("the disk fails")

    monkeypatch.setattr(tenants.service.library.corpora, "corpus", fails)
    answer = tenants.ask("small", "PUT", "/corpora/small-two")
    assert (answer.status_code, answer.json()["error"]) == (503, "the disk fails")


def test_a_file_that_can_not_be_served_refuses_nothing_else(
    wait_until_ready: Callable[[TestClient], None], tmp_path: Path
) -> None:
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "small-notes.sqlite").write_bytes(b"not a corpus")
    with tenants_in(tmp_path, wait_until_ready) as tenants:
        assert tenants.ask("small", "PUT", "/corpora/small-one").status_code == 201
        assert tenants.ask("small", "POST", "/corpora/small-one/documents", json=SMALL).status_code == 200
        assert tenants.ask("small", "GET", "/corpora/small-notes").status_code == 503


def test_uploads_that_wait_count(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants.ask("large", "PUT", "/corpora/large-one").raise_for_status()
    corpus = tenants.used("large-one")
    monkeypatch.setattr(tenants.service.jobs, "_started", False)  # none is begun
    body = b'{"text": "' + b"a" * 2_000_000 + b'"}\n'
    ndjson = {"content-type": "application/x-ndjson"}
    answer = tenants.ask("large", "POST", "/corpora/large-one/documents?async=true", content=body, headers=ndjson)
    assert answer.status_code == 202
    assert tenants.used("large-one") >= corpus + len(body)


def test_a_servers_default_is_for_keys_without_one(
    make_service: Callable[..., Service], wait_until_ready: Callable[[TestClient], None], tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    with changed_keys(file) as keys:
        for name, limit in (("own", 1_000_000_000), ("none", None)):
            keys.append(Key(name=name, sha256=digest(name), scopes=("write",), disk_bytes=limit))
    with TestClient(create_app(make_service(api_keys_file=file, key_disk_bytes=1))) as client:
        wait_until_ready(client)
        answers = [client.put(f"/corpora/{name}", headers={"authorization": name}) for name in ("own", "none")]
        assert [answer.status_code for answer in answers] == [201, 507]


def test_what_a_snapshot_unpacks_to_counts_before_it_does(tenants: Tenants) -> None:
    """Also one that packs to less than is left; in the place of a corpus it counts for what it adds."""
    tenants.ask("large", "PUT", "/corpora/large-one")
    assert tenants.ask("large", "POST", "/corpora/large-one/documents", json=LARGE).status_code == 200
    made = tenants.done("large", "POST", "/corpora/large-one/snapshots")["result"]["id"]
    packed = tenants.ask("large", "GET", f"/corpora/large-one/snapshots/{made}").content
    sent: dict[str, Any] = {"content": packed, "headers": {"content-type": "application/zstd"}}
    restored = tenants.ask("small", "PUT", "/corpora/small-one/restore", **sent)
    failed = tenants.ended("small", restored.headers["location"])
    assert (failed["state"], failed["done"]) == ("failed", 0)
    assert re.search(r"use \d+ of 400000 allowed bytes, and the request needs \d+ more", failed["errors"][0]["error"])
    assert tenants.ask("small", "GET", "/corpora/small-one").status_code == 404
    room, used = tenants.service.disk_quota, tenants.used("large-one")
    unpacked = used - len(packed)
    owner = Key(name="k", sha256=digest("k"), scopes=("write",), corpora=("large-*",), disk_bytes=used + 1)
    with charged_to(Caller(owner, Limits())):
        room.check("", "large-one", unpacked + 1)
        with pytest.raises(NoRoom, match="the request needs 2 more"):
            room.check("", "large-one", unpacked + 2)


def test_answers_that_are_kept_count(tenants: Tenants) -> None:
    """For the key that they are kept for, whatever corpora it shares with others."""
    tenants.ask("small", "PUT", "/corpora/small-one")
    bad = b"".join(b'{"x": %d}\n' % n for n in range(200))

    def upload(n: int) -> Any:
        headers = {"content-type": "application/x-ndjson", "idempotency-key": f"k{n}"}
        return tenants.ask("small", "POST", "/corpora/small-one/documents?on_error=skip", content=bad, headers=headers)

    answers = [upload(n) for n in range(30)]
    kept = tenants.service.jobs.requests.bytes("small")
    assert tenants.used("small-one") < LIMIT <= tenants.used("small-one") + kept
    assert [one.status_code for one in answers if one.status_code != 200] == [507] * sum(
        one.status_code != 200 for one in answers
    )
    assert answers[-1].status_code == 507 and upload(0).content == answers[0].content
