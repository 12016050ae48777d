"""The service and its corpora: other encoders and failing indexes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.corpora.ports import Document
from serving.corpora.search import SearchOptions
from serving.inference.engines import ENGINES
from serving.service import Service

MakeService = Callable[..., Service]
Run = Callable[[Service, Callable[[], Coroutine[Any, Any, None]]], None]


def test_another_bundle_is_a_conflict(
    make_service: MakeService, run: Run, wait_until_ready: Callable[[TestClient], None]
) -> None:
    document = Document("a", "text", {})
    first = make_service()

    async def fill() -> None:
        await first.loaded.wait()
        await first.library.on(lambda corpora: corpora.create("c"))
        await first.library.add("c", [document])

    run(first, fill)
    fake = ENGINES["fake"](Path())
    other = replace(fake, manifest=replace(fake.manifest, fingerprint="fake-2"))
    with TestClient(create_app(make_service(other))) as client:
        wait_until_ready(client)
        search = client.post("/corpora/c/search", json={"query": "a"})
        assert (search.status_code, search.json()["error_type"]) == (409, "Conflict")
        message = "corpus 'c' was embedded by an encoder (fingerprint fake-1) that this server does not serve. "
        assert search.json()["error"].startswith(message + "POST /corpora/c/reembed embeds the corpus again")
        assert client.post("/corpora/c/documents", json={"documents": [{"text": "a"}]}).status_code == 409
        assert client.get("/corpora/c").json()["state"] == "stale"
        assert client.get("/corpora/c/documents/a").json()["text"] == "text"
        client.delete("/corpora/c/documents/a")
        assert client.post("/corpora/c/documents", json={"documents": [{"text": "a"}]}).status_code == 200
        assert client.get("/corpora/c").json()["state"] == "ready"


def test_an_index_that_fails_is_rebuilt_from_the_store(
    make_service: MakeService, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make_service()

    async def work() -> None:
        await service.loaded.wait()
        await service.library.on(lambda corpora: corpora.create("c"))
        await service.library.add("c", [Document("a", "one", {})])
        monkeypatch.setattr("serving.corpora.indexes.live.LiveIndex.change", lambda *_: 1 / 0)
        await service.library.add("c", [Document("b", "two", {})])
        monkeypatch.undo()
        (hits,) = (await service.library.search("c", ["two"], SearchOptions())).hits
        assert [hit.passage.document.id for hit in hits] == ["b", "a"]

    run(service, work)
