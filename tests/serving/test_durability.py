"""`kill -9` at any moment of an upload: what was acknowledged is there, and of every upload all or nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

BATCH = 40


def upload(server: Any, batch: int) -> None:
    documents = [{"id": f"{batch}-{i}", "text": f"document {i} of batch {batch}"} for i in range(BATCH)]
    server.client.post("/corpora/c/documents", json={"documents": documents}).raise_for_status()


def test_twenty_kills_lose_nothing_acknowledged_and_keep_nothing_half_done(launch: Callable[..., Any]) -> None:
    random.seed(0)
    acknowledged: set[int] = set()
    sent = 0
    for _ in range(20):
        server = launch("--store", "sqlite")
        server.client.put("/corpora/c").raise_for_status()
        stored = stored_batches(server.client)
        assert acknowledged <= stored.keys(), "an acknowledged upload was lost"
        assert set(stored.values()) <= {BATCH}, "an upload was kept in part"
        threading.Timer(random.uniform(0.01, 0.15), server.process.kill).start()
        try:
            while True:
                sent += 1
                upload(server, sent)
                acknowledged.add(sent)
        except httpx.TransportError:
            server.process.wait(10)
    server = launch()
    stored = stored_batches(server.client)
    assert acknowledged <= stored.keys()
    assert len(acknowledged) > 20
    for batch in sorted(acknowledged)[-3:]:
        search = server.client.post("/corpora/c/search", json={"query": f"document 7 of batch {batch}", "k": 5}).json()
        assert f"{batch}-7" in {hit["id"] for hit in search["hits"]}


def stored_batches(client: httpx.Client) -> dict[int, int]:
    counts: dict[int, int] = {}
    cursor = ""
    while cursor is not None:
        page = client.get(
            "/corpora/c/documents", params={"limit": 1000} | ({"cursor": cursor} if cursor else {})
        ).json()
        for document in page["documents"]:
            batch = int(document["id"].split("-")[0])
            counts[batch] = counts.get(batch, 0) + 1
        cursor = page["cursor"]
    return counts


def test_a_deleted_document_stays_deleted_after_a_kill(launch: Callable[..., Any], tmp_path: Path) -> None:
    server = launch()
    server.client.put("/corpora/c")
    upload(server, 1)
    assert server.client.delete("/corpora/c/documents/1-3").status_code == 204
    server.client.put("/corpora/gone")
    server.client.delete("/corpora/gone")
    server.kill()
    server = launch()
    assert server.client.get("/corpora/c").json()["documents"] == BATCH - 1
    assert server.client.get("/corpora/c/documents/1-3").status_code == 404
    assert server.client.get("/corpora/gone").status_code == 404
    assert sorted(path.name for path in (tmp_path / "corpora").glob("gone*")) == []
