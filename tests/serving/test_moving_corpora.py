"""Tests of snapshots over HTTP, as jobs."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.responses import FileResponse
from fastapi.testclient import TestClient
from starlette.types import Receive, Scope, Send

from serving.corpora.corpora import Corpora
from serving.corpora.snapshots import Progress
from serving.corpora.stores.sqlite import SqliteStore
from tests.conftest import PATIENCE
from tests.serving.durability.server import serving

DOCUMENTS = [{"id": name, "text": f"{name} is a text", "metadata": {"n": i}} for i, name in enumerate("abcdef")]


def ended(client: TestClient | httpx.Client, answer: Any) -> dict[str, Any]:
    """Return the job of an answer after the job has ended."""
    assert answer.status_code == 202, answer.text
    deadline = time.monotonic() + PATIENCE
    while (job := client.get(answer.headers["location"]).json())["finished"] is None:
        assert time.monotonic() < deadline, job
        time.sleep(0.01)
    return dict(job)


def ids(client: TestClient, corpus: str = "c") -> list[str]:
    return [document["id"] for document in client.get(f"/corpora/{corpus}/documents").json()["documents"]]


def best(client: TestClient, query: str, corpus: str = "c") -> dict[str, Any]:
    answer = client.post(f"/corpora/{corpus}/search", json={"query": query, "k": 1})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["hits"][0])


@pytest.fixture
def filled(client: TestClient) -> TestClient:
    client.put("/corpora/c")
    client.post("/corpora/c/documents", json={"documents": DOCUMENTS}).raise_for_status()
    return client


def test_a_snapshot_there_and_back(filled: TestClient) -> None:
    job = ended(filled, filled.post("/corpora/c/snapshots"))
    assert job["state"] == "succeeded", job
    made = job["result"]
    assert (made["documents"], made["passages"], made["corpus"]) == (6, 6, "c")
    assert filled.get("/corpora/c/snapshots").json() == {"snapshots": [made]}
    file = filled.get(f"/corpora/c/snapshots/{made['id']}")
    assert (file.status_code, len(file.content)) == (200, made["bytes"])
    filled.delete("/corpora/c/documents/a")
    back = ended(filled, filled.put("/corpora/c/restore", json={"snapshot": made["id"]}))
    assert (back["state"], back["result"]["documents"]) == ("succeeded", 6)
    assert ids(filled) == list("abcdef")
    elsewhere = filled.put("/corpora/d/restore", content=file.content, headers={"content-type": "application/zstd"})
    assert ended(filled, elsewhere)["state"] == "succeeded"
    assert (ids(filled, "d"), best(filled, "b is a text", "d")["id"]) == (list("abcdef"), "b")
    named = gzip.compress(json.dumps({"snapshot": made["id"]}).encode())
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    assert ended(filled, filled.put("/corpora/c/restore", content=named, headers=packed))["state"] == "succeeded"
    assert filled.delete(f"/corpora/c/snapshots/{made['id']}").status_code == 204
    assert filled.get("/corpora/c/snapshots").json() == {"snapshots": []}


def test_nothing_is_taken_that_a_restore_would_lose(
    filled: TestClient, refuses: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = ended(filled, filled.post("/corpora/c/snapshots"))["result"]["id"]
    go_on = threading.Event()
    monkeypatch.setattr("serving.corpora.snapshots.reach", lambda _: go_on.wait(PATIENCE))
    restored = filled.put("/corpora/c/restore", json={"snapshot": snapshot})
    says = (409, "Conflict", f"corpus 'c' is being restored by job {restored.json()['id']}")
    refuses(says, "POST", "/corpora/c/documents", json={"documents": [{"id": "a", "text": "newer"}]})
    refuses(says, "DELETE", "/corpora/c/documents/a")
    refuses(says, "DELETE", "/corpora/c/documents", json={"filter": {"n": 1}})
    refuses(says, "PUT", "/corpora/c", json={"description": "newer"})
    refuses(says, "PUT", "/corpora/c", json={"recall_target": 0.9})
    assert filled.put("/corpora/c").status_code == 200, "where nothing is given nothing is lost"
    assert best(filled, "a is a text")["id"] == "a", "it is searched meanwhile"
    upload = filled.post("/corpora/c/documents?async=true", json={"documents": [{"id": "a", "text": "newer"}]})
    go_on.set()
    assert ended(filled, restored)["state"] == ended(filled, upload)["state"] == "succeeded"
    assert filled.get("/corpora/c/documents/a").json()["text"] == "newer", "a job waits for the restore"
    assert filled.delete("/corpora/c/documents/a").status_code == 204
    filled.delete(f"/corpora/c/snapshots/{snapshot}").raise_for_status()


@pytest.mark.parametrize(
    ("place", "asked"),
    [
        ((Corpora, "embedded"), ("POST", {"documents": [{"id": "a", "text": "newer"}]})),
        ((SqliteStore, "ids_matching"), ("DELETE", {"filter": {"n": {"$gte": 0}}})),
    ],
    ids=["written", "removed"],
)
def test_what_had_begun_before_a_restore_is_not_lost_with_it(
    filled: TestClient,
    refuses: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[type, str],
    asked: tuple[str, dict[str, Any]],
) -> None:
    """Restore between a write's embedding and its commit. The commit checks again, so the write is repeated."""
    snapshot = ended(filled, filled.post("/corpora/c/snapshots"))["result"]["id"]
    held = filled.get("/corpora/c/documents").json()
    go_on, restored = threading.Event(), list[Any]()
    monkeypatch.setattr("serving.corpora.snapshots.reach", lambda _: go_on.wait(PATIENCE))
    done = getattr(*place)

    def meanwhile(*given: Any, **named: Any) -> Any:
        if not restored:
            restored.append(filled.put("/corpora/c/restore", json={"snapshot": snapshot}))
        return done(*given, **named)

    monkeypatch.setattr(*place, meanwhile)
    method, body = asked
    refuses((409, "Conflict", "corpus 'c' is being restored"), method, "/corpora/c/documents", json=body)
    go_on.set()
    assert ended(filled, restored[0])["state"] == "succeeded"
    assert filled.get("/corpora/c/documents").json() == held
    filled.delete(f"/corpora/c/snapshots/{snapshot}").raise_for_status()


def test_a_restore_that_is_cancelled_leaves_the_corpus(filled: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ended(filled, filled.post("/corpora/c/snapshots"))["result"]
    filled.post("/corpora/c/documents", json={"documents": [{"id": "new", "text": "new"}]}).raise_for_status()
    unpacked, cancelled = threading.Event(), threading.Event()
    leave = Progress.leave

    def reach(place: str) -> None:
        if place == "snapshots.before-restore":
            unpacked.set()
            assert cancelled.wait(PATIENCE)

    def deleting(progress: Progress) -> None:
        leave(progress)
        cancelled.set()

    monkeypatch.setattr("serving.corpora.snapshots.reach", reach)
    monkeypatch.setattr(Progress, "leave", deleting)
    job = filled.put("/corpora/c/restore", json={"snapshot": made["id"]}).headers["location"]
    assert unpacked.wait(PATIENCE)
    assert filled.delete(job).json()["state"] == "cancelled"
    assert ids(filled) == [*"abcdef", "new"]
    filled.post("/corpora/c/documents", json={"documents": [{"id": "newer", "text": "newer"}]}).raise_for_status()
    filled.delete(f"/corpora/c/snapshots/{made['id']}")


def test_a_snapshot_tells_how_far_it_is(filled: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the progress of a snapshot: copying, hashing and packing are a third each."""
    packing, go_on = threading.Event(), threading.Event()

    def wait(place: str) -> None:
        if place in ("snapshots.before-pack", "snapshots.before-restore"):
            packing.set()
            assert go_on.wait(20)

    def halted(answer: Any, done: int) -> None:
        assert packing.wait(20)
        deadline = time.monotonic() + 30
        while (job := filled.get(answer.headers["location"]).json())["done"] != done:
            assert time.monotonic() < deadline, job
            time.sleep(0.01)
        assert job["total"] == len(DOCUMENTS)
        go_on.set()
        assert ended(filled, answer)["done"] == len(DOCUMENTS)
        packing.clear()
        go_on.clear()

    monkeypatch.setattr("serving.corpora.snapshots.reach", wait)
    monkeypatch.setattr("serving.jobs.kinds.PROGRESS_SECONDS", 0.01)
    halted(filled.post("/corpora/c/snapshots"), len(DOCUMENTS) * 2 // 3)
    snapshot, *_ = filled.get("/corpora/c/snapshots").json()["snapshots"]
    halted(filled.put("/corpora/c/restore", json={"snapshot": snapshot["id"]}), len(DOCUMENTS) // 2)


def test_the_head_of_a_snapshot_is_told_and_the_file_not_read(
    filled: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ended(filled, filled.post("/corpora/c/snapshots"))["result"]
    path = f"/corpora/c/snapshots/{made['id']}"
    with monkeypatch.context() as patch:
        patch.setattr("anyio.open_file", None)
        for headers in ({}, {"range": "bytes=0-9"}):
            head = filled.head(path, headers=headers)
            assert (head.status_code, head.headers["content-length"], head.content) == (200, str(made["bytes"]), b"")
    assert filled.get(path, headers={"range": "bytes=0-9"}).status_code == 206


def test_what_is_downloaded_is_sent_whole_though_it_is_deleted_meanwhile(
    filled: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ended(filled, filled.post("/corpora/c/snapshots"))["result"]
    path = f"/corpora/c/snapshots/{made['id']}"
    whole, send = filled.get(path).content, FileResponse.__call__

    async def deleted(self: FileResponse, scope: Scope, receive: Receive, out: Send) -> None:
        assert (await asyncio.to_thread(filled.delete, path)).status_code == 204
        await send(self, scope, receive, out)

    with monkeypatch.context() as patch:
        patch.setattr(FileResponse, "__call__", deleted)
        answer = filled.get(path)
    assert (answer.status_code, answer.content) == (200, whole)
    assert filled.get(path).status_code == 404


def test_a_snapshot_without_a_content_type_is_told_what_is_missing(
    filled: TestClient, refuses: Callable[..., None]
) -> None:
    says = "content-type: must be application/zstd"
    for body in (b"\x28\xb5\x2f\xfd", b'{"snapshot": "x"}'):
        refuses((415, "Validation", says), "PUT", "/corpora/c/restore", content=body)


@pytest.mark.parametrize(
    ("coding", "says"), [("gzip", "must be absent: send the snapshot as it is"), ("br", "'br' is not supported")]
)
def test_a_snapshot_in_another_coding_is_refused(
    filled: TestClient, refuses: Callable[..., None], coding: str, says: str
) -> None:
    headers = {"content-type": "application/zstd", "content-encoding": coding}
    told = (415, "Validation", f"content-encoding: {says}")
    refuses(told, "PUT", "/corpora/c/restore", content=b"x", headers=headers)


def test_what_is_no_snapshot_is_refused_and_what_is_cut_short_fails_the_job(
    filled: TestClient, refuses: Callable[..., None]
) -> None:
    headers = {"content-type": "application/zstd"}
    for content in (b"x" * 100_000, b""):
        refuses((422, "Validation", "not a snapshot"), "PUT", "/corpora/c/restore", content=content, headers=headers)
    made = ended(filled, filled.post("/corpora/c/snapshots"))["result"]["id"]
    whole = filled.get(f"/corpora/c/snapshots/{made}").content
    job = ended(filled, filled.put("/corpora/c/restore", content=whole[:-1], headers=headers))
    assert (job["state"], job["error_count"]) == ("failed", 1)
    assert "not a snapshot, or cut short" in job["errors"][0]["error"]
    assert ids(filled) == list("abcdef")
    refuses((404, "NotFound", "no snapshot"), "PUT", "/corpora/c/restore", json={"snapshot": "../../x"})
    refuses((404, "NotFound", "no snapshot"), "GET", "/corpora/c/snapshots/nope")
    refuses((422, "Validation", "snapshot"), "PUT", "/corpora/c/restore", json={})
    refuses((422, "Validation", "of"), "PUT", "/corpora/c/restore", json={"snapshot": "x", "of": "../c"})
    refuses(
        (415, "Validation", "application/zstd"),
        "PUT",
        "/corpora/c/restore",
        content=b"x",
        headers={"content-type": "text/plain"},
    )
    refuses((404, "NotFound", "no corpus"), "POST", "/corpora/nope/snapshots")


def test_a_damaged_snapshot_is_refused_by_its_name(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        client.put("/corpora/c").raise_for_status()
        ended(client, client.post("/corpora/c/snapshots"))
        (file,) = (tmp_path / "snapshots" / "c").iterdir()
        id, whole = file.name.removesuffix(".tar.zst"), file.read_bytes()
        for damaged in (b"", whole[:-1], whole[:-40] + bytes([whole[-40] ^ 0xFF]) + whole[-39:]):
            file.write_bytes(damaged)
            job = ended(client, client.put("/corpora/d/restore", json={"snapshot": id, "of": "c"}))
            assert job["state"] == "failed"
            assert [f"snapshot: {file.name}: " in error["error"] for error in job["errors"]] == [True], job["errors"]
        assert client.get("/corpora/d").status_code == 404
