"""`kill -9` at any moment of an upload: what was acknowledged is there, and of every upload all or nothing."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from serving.engines.fake import FakeEngine

BATCH = 40
SLOTS = 3
"""Batches of a writer; the one after these replaces the first."""
STATEMENTS = 3 * BATCH + 5
"""That an upload makes: it deletes, inserts and inserts the vector of each document."""
INSIDE, BY_TIMER = 15, 5
KILLED_INSIDE = """
import itertools, os, signal, sys
from serving.command import serve
from serving.stores import corpus_file
connect, statements = corpus_file._connect, itertools.count(1)

def count(statement):
    if not statement.startswith(("SELECT", "PRAGMA", "CREATE")) and next(statements) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)

def traced(path):
    connection = connect(path)
    connection.set_trace_callback(count)
    return connection

corpus_file._connect = traced
sys.exit(serve(sys.argv[2:]))
"""
"""A server that kills itself before the statement whose number it is given."""


@dataclass
class Writer:
    """Uploads until the server is gone. Knows which version of each batch it was told is stored, and what it sent."""

    number: int
    stored: dict[int, int] = field(default_factory=dict)
    sent: int = -1

    def upload(self, address: str) -> None:
        with httpx.Client(base_url=address, timeout=30, trust_env=False) as client:
            try:
                while True:
                    self.sent += 1
                    client.post("/corpora/c/documents", json={"documents": list(self.documents())}).raise_for_status()
                    self.stored[self.sent % SLOTS] = self.sent
            except httpx.TransportError:
                return

    def documents(self) -> Iterator[dict[str, Any]]:
        for i in range(BATCH):
            name = f"{self.number}-{self.sent % SLOTS}-{i}"
            yield {"id": name, "text": f"text {i} of version {self.sent}", "metadata": {"version": self.sent}}

    def check(self, found: dict[str, dict[str, Any]]) -> None:
        for slot in range(SLOTS):
            held = [document for name, document in found.items() if name.startswith(f"{self.number}-{slot}-")]
            versions = {document["metadata"]["version"] for document in held}
            assert len(versions) <= 1, "an upload was kept in part"
            assert len(held) in (0, BATCH), "an upload was kept in part"
            in_flight = {self.sent} if self.sent % SLOTS == slot else set()
            acknowledged = {self.stored[slot]} if slot in self.stored else set()
            assert versions <= acknowledged | in_flight
            assert versions or not acknowledged, "an acknowledged upload was lost"
            self.stored.update((slot, version) for version in versions)


@pytest.mark.slow
def test_twenty_kills_lose_nothing_acknowledged_and_keep_nothing_half_done(launch: Callable[..., Any]) -> None:
    rng = random.Random(0)
    writers = [Writer(number) for number in range(2)]
    for kill in range(INSIDE + BY_TIMER):
        if kill < INSIDE:  # spread over an upload, in one of the first three
            statement = (kill + rng.random()) * STATEMENTS / INSIDE + rng.randrange(3) * STATEMENTS
            server = launch(command=(sys.executable, "-c", KILLED_INSIDE, str(10 + int(statement))))
        else:
            server = launch()
        check(server.client, writers)
        if kill >= INSIDE:
            threading.Timer(rng.uniform(0.01, 0.15), server.process.kill).start()
        with ThreadPoolExecutor(len(writers)) as pool:
            list(pool.map(Writer.upload, writers, [server.address] * len(writers)))
        assert server.process.wait(10) == -9
    check(launch().client, writers)
    assert sum(writer.sent for writer in writers) > INSIDE


def check(client: httpx.Client, writers: list[Writer]) -> None:
    """Documents, vectors and index agree with each other and with what the writers were told."""
    client.put("/corpora/c").raise_for_status()
    listed = client.get("/corpora/c/documents", params={"limit": 1000}).json()["documents"]
    everything = {"vector": [1.0] * 64, "k": 1000, "with_vector": True}
    hits = client.post("/corpora/c/search", json=everything).raise_for_status().json()["hits"]
    found = {document["id"]: document for document in listed}
    assert len(hits) == len(listed) == client.get("/corpora/c").json()["documents"]
    assert {hit["id"]: (hit["text"], hit["metadata"]) for hit in hits} == {
        name: (document["text"], document["metadata"]) for name, document in found.items()
    }
    for writer in writers:
        writer.check(found)
    if hits:
        engine = FakeEngine()
        embedded = engine.embed(engine.tokenize([hit["text"] for hit in hits], "right")).vectors
        assert np.allclose([hit["vector"] for hit in hits], embedded, atol=1e-6)


def test_a_deleted_document_stays_deleted_after_a_kill(launch: Callable[..., Any], tmp_path: Path) -> None:
    server = launch()
    server.client.put("/corpora/c")
    documents = [{"id": f"1-{i}", "text": f"document {i}"} for i in range(BATCH)]
    server.client.post("/corpora/c/documents", json={"documents": documents}).raise_for_status()
    assert server.client.delete("/corpora/c/documents/1-3").status_code == 204
    server.client.put("/corpora/gone")
    server.client.delete("/corpora/gone")
    server.kill()
    server = launch()
    assert server.client.get("/corpora/c").json()["documents"] == BATCH - 1
    assert server.client.get("/corpora/c/documents/1-3").status_code == 404
    assert server.client.get("/corpora/gone").status_code == 404
    assert sorted(path.name for path in (tmp_path / "corpora").glob("gone*")) == []
