"""Downtime of a corpus after `kill -9`: from the start of the process to the first right answer."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import httpx

from tests.serving.durability.bounds import Bound, Outcome
from tests.serving.durability.server import Home, Server, home

BATCH = 256
"""Documents of an upload request."""
ALLOWED = 5.0
"""Maximum seconds per 100,000 documents."""
KILLS = ("with its index", "without its index")
PLACE = "/corpora/c"


def recovery(folder: Path, documents: int) -> Outcome:
    """Kill a server during writes. All documents are there at the first ready, soon, and without the index too."""
    at = home(folder)
    with at.server() as server:
        empty = server.seconds
        with server.client() as client:
            client.put(PLACE).raise_for_status()
            for start in range(0, documents, BATCH):
                _written(client, start, min(start + BATCH, documents))
        _until_built(server)
        acknowledged = _killed_while_writing(server, documents)
    figures: dict[str, float] = {"start of an empty server s": round(empty, 2)}
    bounds = []
    for kill in KILLS:
        if kill == "without its index":
            shutil.rmtree(at.data / "indexes", ignore_errors=True)  # A small corpus has no index.
        took, counted, found = _recovered(at, acknowledged)
        bounds += [
            Bound(f"documents lost, {kill}", acknowledged - counted, 0),
            Bound(f"acknowledged last and not found, {kill}", int(not found), 0),
            Bound(f"seconds for each 100,000 documents, {kill}", (took - empty) * 100_000 / acknowledged, ALLOWED),
        ]
        figures[f"first right answer s, {kill}"] = round(took, 2)
    return Outcome(bounds, figures)


def _recovered(at: Home, acknowledged: int) -> tuple[float, int, bool]:
    """Return seconds until the last document was found, the number of documents, and whether it was the first hit."""
    began = time.perf_counter()
    with at.server() as server, server.client() as client:
        asked = {"query": _text(acknowledged - 1), "k": 1}
        hits = client.post(f"{PLACE}/search", json=asked).raise_for_status().json()["hits"]
        took = time.perf_counter() - began
        counted = client.get(PLACE).raise_for_status().json()["documents"]
        server.kill()
    return took, counted, bool(hits) and hits[0]["text"] == asked["query"]


def _killed_while_writing(server: Server, start: int) -> int:
    """Return the number of acknowledged documents, including the first `start`."""
    acknowledged = start
    timer = threading.Timer(1.0, server.kill)
    timer.start()
    with server.client() as client:
        try:
            while True:
                _written(client, acknowledged, acknowledged + 1)
                acknowledged += 1
        except httpx.TransportError:
            return acknowledged


def _written(client: httpx.Client, start: int, end: int) -> None:
    documents = [{"id": str(n), "text": _text(n), "metadata": {"n": n}} for n in range(start, end)]
    client.post(f"{PLACE}/documents", json=documents).raise_for_status()


def _until_built(server: Server) -> None:
    with server.client() as client:
        while client.get(PLACE).raise_for_status().json()["index_details"]["state"] == "building":
            time.sleep(0.1)


def _text(n: int) -> str:
    return f"document {n} of the {n % 97}th kind, that of {n % 1009}"
