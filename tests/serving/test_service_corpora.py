"""The service and its corpora: other encoders, failing indexes, the demo."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving import demo
from serving.app import create_app
from serving.corpora.finding import Wanted
from serving.embeddings import EmbedOptions
from serving.engines import ENGINES
from serving.errors import TooLarge
from serving.ports import Document, Model
from serving.service import Service
from tests.serving.jobs.counting import ended

DONE = "succeeded"
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
        assert "fake-1" in search.json()["error"] and "fake-2" in search.json()["error"]
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
        monkeypatch.setattr("serving.indexes.live.LiveIndex.change", lambda *_: 1 / 0)
        await service.library.add("c", [Document("b", "two", {})])
        monkeypatch.undo()
        (hits,) = (await service.library.search("c", ["two"], Wanted())).hits
        assert [hit.passage.document.id for hit in hits] == ["b", "a"]

    run(service, work)


@pytest.mark.parametrize(
    ("paragraph", "kept"),
    [
        ("short", "short"),
        ("One. " + "two " * 80, "One."),
        ("word " * 80, ("word " * 40).rstrip()),
        ("x" * 300, "x" * demo.MAX_CHARACTERS),
        (" " + "x" * 300, " " + "x" * (demo.MAX_CHARACTERS - 1)),
    ],
)
def test_the_demo_cuts_after_a_sentence_a_word_or_anywhere(paragraph: str, kept: str) -> None:
    assert demo._cut(paragraph) == kept


def test_the_demo_corpus_is_all_or_nothing(
    make_service: MakeService, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "MAX_DOCUMENTS", 300)
    broken = make_service()
    broken._prepare = demo.prepare
    monkeypatch.setattr(broken, "report", lambda reason: 1 / 0 if reason.endswith("256 of 300 documents") else None)

    async def fails() -> None:
        await broken.loaded.wait()
        assert broken.health.state == "failed"
        assert broken.library.corpora.names() == []

    run(broken, fails)
    service = make_service()
    service._prepare = demo.prepare

    async def builds() -> None:
        await service.loaded.wait()
        assert service.health.state == "ready"
        assert service.library.corpora.corpus(demo.NAME)[1].documents == 300

    run(service, builds)


def test_the_demo_corpus_follows_the_encoder_and_keeps_what_others_put_into_it(
    make_service: MakeService, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "MAX_DOCUMENTS", 20)
    fake = ENGINES["fake"](tmp_path)
    other = replace(fake, manifest=replace(fake.manifest, fingerprint="fake-2"))

    def served(model: Model, *, documents: int, own: bool = False) -> None:
        service = make_service(model)
        service._prepare = demo.prepare

        async def work() -> None:
            await service.loaded.wait()
            assert service.health.state == "ready"
            for job in await service.jobs.listing():
                await ended(service.jobs, job.id)
            corpus, size = service.library.corpora.corpus(demo.NAME)
            assert (corpus.fingerprint, size.documents) == (model.manifest.fingerprint, documents)
            if own:
                await service.library.on(lambda corpora: corpora.create("mine"))
                await service.library.add("mine", [Document("a", "one", {})])
                await service.library.add(demo.NAME, [Document("a", "mine, too", {})])
            assert service.library.corpora.corpus("mine")[0].fingerprint == "fake-1"
            assert service.library.corpora.document(demo.NAME, "a").text == "mine, too"

        run(service, work)

    served(fake, documents=20, own=True)
    served(other, documents=21)
    served(other, documents=21)


def test_what_one_request_may_hold_does_not_bound_documents(
    make_service: MakeService, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the demo, an upload and a corpus that is embedded again."""
    monkeypatch.setattr(demo, "MAX_DOCUMENTS", 20)
    fake = ENGINES["fake"](tmp_path)
    for model in (fake, replace(fake, manifest=replace(fake.manifest, fingerprint="fake-2"))):
        service = make_service(model, max_request_texts=1, max_request_tokens=5)
        service._prepare = demo.prepare

        async def work(service: Service = service) -> None:
            await service.loaded.wait()
            assert service.health.state == "ready", service.health.reason
            assert [(await ended(service.jobs, job.id)).state for job in await service.jobs.listing()] in ([], [DONE])
            await service.library.add(demo.NAME, [Document(id, f"one two three {id}", {}) for id in "ab"])
            corpus, size = service.library.corpora.corpus(demo.NAME)
            assert (corpus.fingerprint, size.documents) == (service.manifest.fingerprint, 22)
            for texts, says in ((["a", "b"], "2 texts are more than the 1"), (["a b c d e"], "tokens are more than")):
                with pytest.raises(TooLarge, match=says):
                    await service.embed(texts, EmbedOptions())

        run(service, work)


def test_a_corpus_of_ones_own_with_the_demos_name_is_not_replaced(
    make_service: MakeService, run: Run, tmp_path: Path
) -> None:
    fake = ENGINES["fake"](tmp_path)
    service = make_service(fake)

    async def mine() -> None:
        await service.loaded.wait()
        await service.library.on(lambda corpora: corpora.create(demo.NAME, description="mine"))
        await service.library.add(demo.NAME, [Document("a", "one", {})])

    run(service, mine)
    again = make_service(replace(fake, manifest=replace(fake.manifest, fingerprint="fake-2")))
    again._prepare = demo.prepare

    async def kept() -> None:
        await again.loaded.wait()
        assert again.library.corpora.corpus(demo.NAME)[0].fingerprint == "fake-1"
        assert again.library.corpora.document(demo.NAME, "a").text == "one"

    run(again, kept)
