"""Tests of a server on a Milvus Lite: kills during uploads, and refusals over HTTP."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

pytest.importorskip("pymilvus", reason="the extra 'milvus' is not installed")

from tests.conftest import PATIENCE
from tests.serving.conftest import Launcher, Running

PLACE = "/corpora/kept/documents"
TOGETHER = 20


class Writer:
    """Client that uploads, replaces and removes documents until the server ends, and records acknowledgements."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, int | None] = {}
        """The version of each document, or None if it was removed."""
        self.in_doubt: dict[str, set[int | None]] = {}
        """Possible versions of documents after requests without an answer."""
        self.jobs: list[str] = []
        self.changes = 0
        """Number of acknowledged requests."""
        self._version = 0
        self._draw = random.Random(0)

    def write(self, client: httpx.Client) -> None:
        try:
            while True:
                self._change(client)
        except httpx.TransportError:
            pass

    def _change(self, client: httpx.Client) -> None:
        self._version += 1
        names = [f"d{self._draw.randrange(200):03}" for _ in range(TOGETHER)]
        gone = self._draw.random() < 0.2
        changed: dict[str, int | None] = dict.fromkeys(names[:1] if gone else names, None if gone else self._version)
        for name, version in changed.items():
            self.in_doubt.setdefault(name, set()).add(version)
        if gone:
            answer = client.delete(f"{PLACE}/{names[0]}")
            assert answer.status_code in (204, 404), answer.text
        else:
            answer = client.post(PLACE, json={"documents": [body(name, self._version) for name in changed]})
            assert answer.status_code == 200, answer.text
        for name, version in changed.items():
            self.acknowledged[name] = version
            del self.in_doubt[name]
        self.changes += 1

    def check(self, client: httpx.Client) -> None:
        """Everything acknowledged is there. A request without an answer has happened or not, for each document."""
        there = {one["id"]: one["metadata"]["version"] for one in listed(client)}
        for name in self.acknowledged.keys() | self.in_doubt.keys():
            allowed = {self.acknowledged.get(name), *self.in_doubt.get(name, ())}
            assert there.get(name) in allowed, (name, there.get(name), allowed)
            self.acknowledged[name] = there.get(name)
        self.in_doubt.clear()
        assert there.keys() <= self.acknowledged.keys()


def body(name: str, version: int) -> dict[str, Any]:
    return {"id": name, "text": f"document {name} in version {version}", "metadata": {"version": version}}


def listed(client: httpx.Client) -> list[dict[str, Any]]:
    read, cursor = list[dict[str, Any]](), None
    while True:
        page = client.get(PLACE, params={"limit": 100, **({"cursor": cursor} if cursor else {})}).raise_for_status()
        read += page.json()["documents"]
        if (cursor := page.json()["cursor"]) is None:
            return read


@pytest.mark.parametrize(
    "kills", [pytest.param(2, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.nightly)]
)
def test_nothing_that_was_acknowledged_is_lost_when_the_server_is_killed(launch: Launcher, kills: int) -> None:
    writer, draw = Writer(), random.Random(1)
    store = str(launch.data / "milvus.db")
    running = launch("--store", store)
    running.client.put("/corpora/kept").raise_for_status()
    for _ in range(kills):
        writing = threading.Thread(target=writer.write, args=(running.client,))
        changes, until = writer.changes, time.monotonic() + PATIENCE
        writing.start()
        while writer.changes == changes and writing.is_alive():
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(draw.random())
        running.process.kill()
        writing.join(PATIENCE)
        assert not writing.is_alive()
        running = launch("--store", store)
        assert writer.changes > changes
        writer.check(running.client)
    hit = running.client.post("/corpora/kept/search", json={"query": "document", "mode": "lexical", "k": 1}).json()
    assert len(hit["hits"]) == 1


@pytest.mark.slow
def test_a_job_goes_on_after_a_kill_and_stores_each_row_once(launch: Launcher) -> None:
    store = str(launch.data / "milvus.db")
    running = launch("--store", store)
    running.client.put("/corpora/kept").raise_for_status()
    lines = "\n".join(f'{{"text": "row number {i}", "metadata": {{"version": {i}}}}}' for i in range(700))
    job = running.client.post(PLACE, content=lines, headers={"content-type": "application/x-ndjson"})
    assert job.status_code == 202, job.text
    while not running.client.get("/corpora/kept").json()["documents"]:
        time.sleep(0.05)
    later = running.client.post(PLACE, json={"documents": [body("later", -1)]}, headers={"idempotency-key": "one"})
    running.process.kill()
    running = launch("--store", store)
    again = running.client.post(PLACE, json={"documents": [body("later", -1)]}, headers={"idempotency-key": "one"})
    assert (again.status_code, again.json()) == (200, later.json())
    assert ended(running, job.json()["id"])["state"] == "succeeded"
    versions = [one["metadata"]["version"] for one in listed(running.client)]
    assert sorted(versions) == list(range(-1, 700))


def ended(running: Running, job: str) -> dict[str, Any]:
    until = time.monotonic() + PATIENCE
    while (found := running.client.get(f"/jobs/{job}").json())["state"] in ("queued", "running"):
        assert time.monotonic() < until, found
        time.sleep(0.1)
    return dict(found)


@pytest.mark.backends("milvus")
def test_no_map_is_stored_and_the_way_is_named(client: TestClient) -> None:
    client.put("/corpora/c")
    answer = client.post("/corpora/c/map")
    assert (answer.status_code, answer.json()["error_type"]) == (501, "Backend")
    assert "isosphere copy-corpus" in answer.json()["error"]
    found = client.get("/corpora/c/map").json()
    assert (found["projection"], found["stored"], found["hint"]) == ("pca", None, answer.json()["error"])


@pytest.mark.backends("milvus")
def test_snapshots_are_refused_and_the_way_is_named(client: TestClient) -> None:
    client.put("/corpora/c")
    before = client.get("/jobs").json()
    for method, path in (("POST", "/corpora/c/snapshots"), ("PUT", "/corpora/c/restore")):
        answer = client.request(method, path)
        assert (answer.status_code, answer.json()["error_type"]) == (501, "Backend")
        assert "corpora on Milvus have no snapshots" in answer.json()["error"]
    assert client.get("/corpora/c/snapshots").json() == {"snapshots": []}
    assert client.get("/jobs").json() == before
