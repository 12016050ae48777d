"""Tests of the service and its corpora: other encoders and failing indexes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.corpora.search import SearchOptions
from serving.corpora.values import Corpus, Document
from serving.inference.engines import ENGINES
from serving.service import Service
from tests.serving.shelf import Shelf

MakeService = Callable[..., Service]
Run = Callable[[Service, Callable[[], Coroutine[Any, Any, None]]], None]


def test_another_bundle_is_a_conflict(
    make_service: MakeService, run: Run, wait_until_ready: Callable[[TestClient], None]
) -> None:
    document = Document("a", "text", {})
    first = make_service()

    async def fill() -> None:
        await first.loaded.wait()
        await first.library.run(lambda corpora: corpora.create(Corpus("c")))
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
        await service.library.run(lambda corpora: corpora.create(Corpus("c")))
        await service.library.add("c", [Document("a", "one", {})])
        monkeypatch.setattr("serving.corpora.indexes.live.LiveIndex.change", lambda *_: 1 / 0)
        await service.library.add("c", [Document("b", "two", {})])
        monkeypatch.undo()
        (hits,) = (await service.library.search("c", ["two"], SearchOptions())).hits
        assert [hit.passage.document.id for hit in hits] == ["b", "a"]

    run(service, work)


def test_an_open_index_says_which_encoder_its_corpus_has(
    shelf: Shelf, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask the store again, because a re-embedded corpus may still have its old index."""
    service = shelf.service("fake", "turned")
    asked: list[str] = []
    encoder = service.library.corpora.encoder

    def noted(name: str, served: Sequence[str]) -> str:
        asked.append(name)
        return encoder(name, served)

    async def found() -> list[str]:
        (hits,) = (await service.library.search("c", ["one"], SearchOptions())).hits
        return [hit.passage.document.id for hit in hits]

    async def work() -> None:
        await service.loaded.wait()
        await service.library.run(lambda corpora: corpora.create(Corpus("c")))
        await service.library.add("c", [Document("a", "one", {})])
        assert await found() == ["a"]
        monkeypatch.setattr(service.library.corpora, "encoder", noted)
        assert await found() == ["a"] and not asked
        monkeypatch.setattr(service.library.corpora, "index_fingerprint", lambda _: "fake-2")
        assert await found() == ["a"] and asked

    run(service, work)
