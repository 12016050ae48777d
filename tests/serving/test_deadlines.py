"""Tests of a caller's deadline during blocking work: reads are abandoned, and writes are completed first."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.corpora.corpora import Corpora

SOON = {"x-timeout-ms": "50"}


@pytest.fixture
def books(client: TestClient) -> TestClient:
    client.put("/corpora/books")
    client.post("/corpora/books/documents", json={"documents": [{"id": "moby", "text": "a white whale"}]})
    return client


@pytest.mark.parametrize(
    ("method", "path", "waits"),
    [
        ("GET", "/corpora", "corpora.corpora.Corpora.descriptions"),
        ("GET", "/corpora/books", "corpora.corpora.Corpora.description"),
        ("GET", "/corpora/books/fields", "corpora.corpora.Corpora.facets"),
        ("GET", "/corpora/books/map", "corpora.corpora.Corpora.sample"),
        ("GET", "/corpora/books/documents", "corpora.corpora.Corpora.page"),
        ("GET", "/corpora/books/documents/moby", "corpora.corpora.Corpora.document"),
        ("GET", "/corpora/books/snapshots", "corpora.snapshots.Snapshots.listing"),
        ("POST", "/corpora/books/snapshots", "corpora.corpora.Corpora.corpus"),
        ("POST", "/corpora/books/reembed", "corpora.corpora.Corpora.corpus"),
        ("PUT", "/corpora/books/restore", "corpora.snapshots.Snapshots.path"),
        ("POST", "/corpora/books/search", "corpora.corpora.Corpora.encoder"),
        ("POST", "/corpora/books/search", "corpora.corpora.Corpora.search"),
        ("POST", "/corpora/books/documents", "corpora.corpora.Corpora.embedded"),
    ],
)
def test_a_deadline_does_not_wait_for_what_reads(
    books: TestClient, monkeypatch: pytest.MonkeyPatch, method: str, path: str, waits: str
) -> None:
    finish, finished = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        finish.wait(10)
        finished.set()

    bodies: dict[str, dict[str, Any]] = {
        "search": {"query": "whale"},
        "documents": {"documents": [{"text": "a"}]},
        "restore": {"snapshot": "20260101T000000-00000000"},
    }
    sent: dict[str, Any] = {} if method == "GET" else {"json": bodies.get(path.rpartition("/")[2], {})}
    monkeypatch.setattr(f"serving.{waits}", slow)
    late = books.request(method, path, headers=SOON, **sent)
    assert late.status_code == 504 and not finished.is_set(), late.text
    finish.set()


def test_a_write_that_has_begun_is_ended_first(books: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, finished = threading.Event(), threading.Event()
    delete = Corpora.delete

    def slow(corpora: Corpora, name: str, document: str) -> None:
        begun.set()
        time.sleep(0.3)
        delete(corpora, name, document)
        finished.set()

    monkeypatch.setattr(Corpora, "delete", slow)
    late = books.delete("/corpora/books/documents/moby", headers=SOON)
    assert late.status_code == 504 and begun.is_set() == finished.is_set()
    assert books.get("/corpora/books/documents/moby").status_code == (404 if begun.is_set() else 200)
