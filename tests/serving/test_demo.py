"""Tests of the demo corpus: the server is ready before it is filled, and it is completed after any interruption."""

from __future__ import annotations

import asyncio
import io
import json
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from fastapi.testclient import TestClient

from models.python_docs import Section
from serving.app import create_app
from serving.commands import demo
from serving.commands.loading import opened_models
from serving.commands.starting import opened_service
from serving.corpora.ingest.documents import checked, names_within
from serving.corpora.ingest.uploading import Options, rows
from serving.corpora.ingest.vectors import VectorRule
from serving.corpora.values import Corpus, Document
from serving.errors import TooLarge
from serving.inference.embeddings import EmbedOptions
from serving.inference.engine import Model
from serving.inference.engines import ENGINES
from serving.jobs import ingestion
from serving.jobs.upload_order import UPLOAD
from serving.operations import failpoints
from serving.operations.failpoints import VARIABLE
from serving.service import Service
from serving.settings import Settings
from tests.conftest import PATIENCE
from tests.serving.conftest import Launcher, Running
from tests.serving.engines import Gate, model
from tests.serving.jobs.counting import ended
from tests.serving.processes import small_demo

MakeService = Callable[..., Service]
Run = Callable[[Service, Callable[[], Coroutine[Any, Any, None]]], None]
HalfFilled = Callable[[Service], Coroutine[Any, Any, tuple[asyncio.Task[None], asyncio.Task[None]]]]
WHOLE = 600
"""Documents of the demo corpus in these tests, which take three commits."""


@pytest.fixture(autouse=True)
def documentation(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a short documentation, which needs no reading of the standard library."""
    found = [Section(f"module{i % 7}", f"name{i}", f"This is the paragraph of number {i}.") for i in range(WHOLE)]
    monkeypatch.setattr(demo, "sections", lambda: iter(found))
    yield
    failpoints.arm({})


def started(service: Service) -> Service:
    """Return the service after a start as by `isosphere serve`."""
    service._prepare = demo.prepare
    return service


def documents(service: Service) -> int:
    return service.library.corpora.corpus(demo.NAME)[1].documents


@pytest.fixture
def half_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HalfFilled:
    """Return a function that starts to fill the demo corpus, and waits for the first of its three commits.

    The job then waits until the service stops, so the next service continues it.
    """
    hold = tmp_path / "hold"
    monkeypatch.setattr(ingestion, "IN_FLIGHT", 1)

    async def release(service: Service) -> None:
        await until(lambda: service.health.state == "draining")
        hold.unlink()

    async def half_filled(service: Service) -> tuple[asyncio.Task[None], asyncio.Task[None]]:
        hold.touch()
        failpoints.arm({VARIABLE: f"jobs.before-checkpoint=hold:{hold}@3"})
        tasks = asyncio.create_task(demo.fill(service)), asyncio.create_task(release(service))
        await until(lambda: documents(service))
        assert documents(service) < WHOLE
        return tasks

    return half_filled


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


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
def test_it_cuts_after_a_sentence_a_word_or_anywhere(paragraph: str, kept: str) -> None:
    assert demo._cut(paragraph) == kept


def test_what_the_printed_example_asks_for_is_embedded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "abc": "Of all the texts this is the shortest.",
        "asyncio.tasks": "Wait for a task, but not longer than that.",
    }
    found = [Section(module, "f", text * 2) for module, text in texts.items()]
    monkeypatch.setattr(demo, "sections", lambda: iter([*found, Section("asyncio", "g", texts["asyncio.tasks"])]))
    modules = [json.loads(line)["metadata"]["module"] for line in demo._lines(Event())]
    assert modules == ["asyncio", "asyncio.tasks", "abc"]


@pytest.mark.slow
def test_every_document_of_the_real_one_can_be_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    file, settings, rule = io.BytesIO(b"".join(demo._lines(Event()))), Settings(), VectorRule(demo.NAME, own=False)
    found = [*checked(rows(file, Options(**demo.OPTIONS), settings), settings, names_within(uuid.uuid4()), rule)]
    assert [row.error for row in found if row.error] == []
    ids = {row.document.id for row in found if row.document}
    assert len(ids) == len(found) > 5000
    assert found[0].document and found[0].document.metadata["module"].startswith("asyncio")


def until_found(server: Running) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (hits := server.client.post("/corpora/python-docs/search", json={"query": "a"}).json()["hits"]):
        assert time.monotonic() < deadline, server.log.read_text()
        time.sleep(0.02)
    assert {"module", "name", "paragraph"} == hits[0]["metadata"].keys()


@pytest.mark.slow
def test_a_server_answers_while_it_embeds_and_goes_on_after_a_kill(
    launch: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    monkeypatch.setenv(VARIABLE, f"jobs.after-checkpoint=hold:{hold}@3")  # The first request after a commit.
    server = launch(demo=True, command=small_demo(2000))
    monkeypatch.delenv(VARIABLE)
    assert server.client.get("/corpora/python-docs").status_code == 200
    until_found(server)
    assert server.client.post("/embed", json={"inputs": "a"}).status_code == 200
    (job,) = server.client.get("/jobs").json()["jobs"]
    there = server.client.get("/corpora/python-docs").json()["documents"]
    assert (job["kind"], job["state"], job["total"]) == (UPLOAD, "running", 2000)
    assert 0 < there < 2000
    assert server.process.stdout is not None
    printed = [line for line in (server.process.stdout.readline() for _ in range(5)) if line.startswith("curl")]
    assert [line.split()[2].rsplit("/", 1)[-1] for line in printed] == ["embed", "similarity", "search"]
    server.kill()

    again = launch(demo=True, command=small_demo(2000))
    *_, last = again.client.get(f"/jobs/{job['id']}/events").text.strip().split("\n\n")
    assert '"succeeded"' in last
    assert again.client.get("/corpora/python-docs").json()["documents"] == 2000
    assert len(again.client.get("/jobs").json()["jobs"]) == 1


def test_it_is_there_from_the_start_and_filled_once(make_service: MakeService, run: Run) -> None:
    for _ in range(2):
        service = started(make_service())

        async def work(service: Service = service) -> None:
            await service.loaded.wait()
            assert service.library.corpora.names() == [demo.NAME]
            await demo.fill(service)
            assert documents(service) == WHOLE
            assert [job.state for job in await service.jobs.listing()] == ["succeeded"]

        run(service, work)


def test_a_server_that_went_before_the_upload_fills_it_at_its_next_start(make_service: MakeService, run: Run) -> None:
    first = started(make_service())

    async def goes() -> None:
        await first.loaded.wait()
        await first.library.run(lambda corpora: corpora.create(Corpus("mine")))

    run(first, goes)
    second = started(make_service())

    async def fills() -> None:
        await second.loaded.wait()
        await demo.fill(second)
        assert documents(second) == WHOLE

    run(second, fills)


def test_half_of_it_by_another_encoder_becomes_the_whole_by_this_one(
    make_service: MakeService, run: Run, tmp_path: Path, half_filled: HalfFilled
) -> None:
    fake = ENGINES["fake"](tmp_path)
    first = started(make_service(fake))

    async def is_left_half_done() -> None:
        await first.loaded.wait()
        filling, _release = await half_filled(first)
        filling.cancel()
        async with first.jobs.spool() as spool:
            await spool.write(b"a text of somebody else")
            await first.jobs.submit(UPLOAD, demo.NAME, Options(format="text").model_dump(), spool=spool)

    run(first, is_left_half_done)
    failpoints.arm({})
    second = started(make_service(replace(fake, manifest=replace(fake.manifest, fingerprint="fake-2"))))

    async def becomes_whole() -> None:
        await second.loaded.wait()
        assert second.health.state == "ready"
        await demo.fill(second)
        assert documents(second) == WHOLE
        assert second.library.corpora.corpus(demo.NAME)[0].fingerprint == "fake-2"
        states = [(job.kind, job.state) for job in await second.jobs.listing()]
        assert states == [(UPLOAD, "succeeded"), ("reembed", "succeeded"), (UPLOAD, "failed"), (UPLOAD, "failed")]

    run(second, becomes_whole)


def test_it_follows_the_encoder_and_keeps_what_others_put_into_it(
    make_service: MakeService, run: Run, tmp_path: Path
) -> None:
    fake = ENGINES["fake"](tmp_path)
    other = replace(fake, manifest=replace(fake.manifest, fingerprint="fake-2"))

    def served(model: Model, *, own: bool = False) -> None:
        service = started(make_service(model))

        async def work() -> None:
            await service.loaded.wait()
            assert service.health.state == "ready"
            await demo.fill(service)
            for job in await service.jobs.listing():
                await ended(service.jobs, job.id)
            if own:
                await service.library.run(lambda corpora: corpora.create(Corpus("mine")))
                await service.library.add("mine", [Document("a", "one", {})])
                await service.library.add(demo.NAME, [Document("a", "mine, too", {})])
            assert documents(service) == WHOLE + 1
            assert service.library.corpora.corpus(demo.NAME)[0].fingerprint == model.manifest.fingerprint
            assert service.library.corpora.corpus("mine")[0].fingerprint == "fake-1"
            assert service.library.corpora.document(demo.NAME, "a").text == "mine, too"

        run(service, work)

    served(fake, own=True)
    served(other)
    served(other)


def test_what_a_person_removes_stays_so_though_another_upload_failed(make_service: MakeService, run: Run) -> None:
    service = started(make_service())

    async def work() -> None:
        await service.loaded.wait()
        await demo.fill(service)
        await service.library.run(lambda corpora: corpora.delete(demo.NAME, "module0:name0#1"))
        async with service.jobs.spool() as spool:
            await spool.write(b"no JSON")
            bad = Options(format="ndjson").model_dump()
            job = await service.jobs.submit(UPLOAD, demo.NAME, bad, spool=spool)
        assert (await ended(service.jobs, job.id)).state == "failed"
        await demo.fill(service)
        assert documents(service) == WHOLE - 1

    run(service, work)


def test_a_job_that_a_person_cancels_is_not_begun_again(make_service: MakeService, run: Run) -> None:
    engine = Gate()
    engine.open.set()
    service = started(make_service(model(lambda _: engine)))

    async def work() -> None:
        await service.loaded.wait()
        engine.open.clear()
        filling = asyncio.create_task(demo.fill(service))
        await until(lambda: service.jobs.unfinished(UPLOAD, demo.NAME))
        (job,) = service.jobs.unfinished(UPLOAD, demo.NAME)
        cancelling = asyncio.create_task(service.jobs.cancel(job))
        engine.open.set()
        assert (await cancelling).state == "cancelled"
        await filling
        await demo.fill(service)
        assert [job.state for job in await service.jobs.listing()] == ["cancelled"]

    run(service, work)


def test_it_may_be_deleted_while_it_is_embedded_and_comes_back_where_there_is_nothing(
    make_service: MakeService, run: Run
) -> None:
    engine = Gate()
    engine.open.set()
    service = started(make_service(model(lambda _: engine)))

    async def deleted() -> None:
        await service.loaded.wait()
        engine.open.clear()
        filling = asyncio.create_task(demo.fill(service))
        await until(lambda: service.jobs.unfinished(UPLOAD, demo.NAME))
        engine.open.set()
        async with service.jobs.deleting(demo.NAME):
            await service.library.run(lambda corpora: corpora.drop(demo.NAME), of=demo.NAME)
        await filling
        await demo.fill(service)
        assert service.library.corpora.names() == []

    run(service, deleted)
    again = started(make_service())

    async def comes_back() -> None:
        await again.loaded.wait()
        await demo.fill(again)
        assert documents(again) == WHOLE

    run(again, comes_back)


def test_the_job_of_a_corpus_that_is_gone_does_not_go_on_in_a_new_one(
    make_service: MakeService, run: Run, half_filled: HalfFilled
) -> None:
    """Use a store in memory, which forgets the corpus, with a ledger on disk, which does not forget the job."""
    first, second = started(make_service(store="memory")), started(make_service(store="memory"))

    async def goes() -> None:
        await first.loaded.wait()
        filling, _release = await half_filled(first)
        filling.cancel()

    run(first, goes)
    failpoints.arm({})

    async def is_whole() -> None:
        await second.loaded.wait()
        await demo.fill(second)
        assert documents(second) == WHOLE

    run(second, is_whole)


def test_a_server_without_a_demo_is_a_server(
    make_service: MakeService, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(demo, "sections", lambda: 1 / 0)
    service = started(make_service())

    async def work() -> None:
        await service.loaded.wait()
        await demo.fill(service)
        assert service.readiness.state == "ready"

    run(service, work)
    assert "the demo corpus python-docs is not filled: division by zero" in caplog.text


def test_what_one_request_may_hold_does_not_bound_documents(
    make_service: MakeService, run: Run, tmp_path: Path
) -> None:
    """Exceed the memory limit of one request by the demo, an upload and a re-embedding, which have no such limit."""
    fake = ENGINES["fake"](tmp_path)
    for served in (fake, replace(fake, manifest=replace(fake.manifest, fingerprint="fake-2"))):
        service = started(make_service(served, max_request_texts=1, max_request_tokens=5))

        async def work(service: Service = service) -> None:
            await service.loaded.wait()
            await demo.fill(service)
            assert {(await ended(service.jobs, job.id)).state for job in await service.jobs.listing()} == {"succeeded"}
            await service.library.add(demo.NAME, [Document(id, f"one two three {id}", {}) for id in "ab"])
            corpus, size = service.library.corpora.corpus(demo.NAME)
            assert (corpus.fingerprint, size.documents) == (service.encoders.fingerprints[0], WHOLE + 2)
            for texts, says in ((["a", "b"], "2 texts are more than the 1"), (["a b c d e"], "tokens are more than")):
                with pytest.raises(TooLarge, match=says):
                    await service.embed(texts, EmbedOptions())

        run(service, work)


def test_a_corpus_of_ones_own_with_its_name_is_not_touched(make_service: MakeService, run: Run, tmp_path: Path) -> None:
    fake = ENGINES["fake"](tmp_path)
    service = make_service(fake)

    async def mine() -> None:
        await service.loaded.wait()
        await service.library.run(lambda corpora: corpora.create(Corpus(demo.NAME, description="mine")))
        await service.library.add(demo.NAME, [Document("a", "one", {})])

    run(service, mine)
    again = started(make_service(replace(fake, manifest=replace(fake.manifest, fingerprint="fake-2"))))

    async def kept() -> None:
        await again.loaded.wait()
        await demo.fill(again)
        assert again.library.corpora.corpus(demo.NAME)[0].fingerprint == "fake-1"
        assert again.library.corpora.document(demo.NAME, "a").text == "one"
        assert documents(again) == 1

    run(again, kept)


def test_corpora_in_memory_need_no_folder(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "new", store="memory", engine="fake", no_demo=True)
    with TestClient(create_app(opened_service(settings, opened_models(settings)))) as client:
        assert client.get("/livez").status_code == 200
