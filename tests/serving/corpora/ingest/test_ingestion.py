"""The work of a large upload, around a library that only remembers."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import pytest

from serving.corpora.ingest.documents import Checked, checked
from serving.corpora.ingest.uploading import Options
from serving.corpora.values import Chunking, Document
from serving.errors import Backend, NotFound, Overloaded, Unhealthy
from serving.jobs import Job, Running, ingestion
from serving.jobs.ingestion import BLOCK_DOCUMENTS, IN_FLIGHT
from serving.operations.child_process import running
from tests.conftest import soon
from tests.serving.corpora.ingest.remembering import Library, ingested, jobs_around, lines, run, state, submitted


def test_everything_is_stored_in_blocks_side_by_side(tmp_path: Path) -> None:
    library = Library(seconds=0.1)
    job = ingested(tmp_path, library, lines(5000), chunk_tokens=32, chunk_overlap=4)
    assert (job.state, job.done, job.total, job.errors) == ("succeeded", 5000, 5000, ())
    assert job.result == {"count": 5000, "truncated": library.blocks}
    assert library.blocks == -(-5000 // BLOCK_DOCUMENTS)
    assert 1 < library.most <= IN_FLIGHT
    assert library.chunkings == {Chunking(32, 4)}
    assert library.documents == {f"d{i}": Document(f"d{i}", f"text {i}", {}) for i in range(5000)}


@pytest.mark.slow
def test_blocks_that_end_together_share_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    checkpoint = Running.checkpoint

    async def slowly(job: Running, position: Any, done: int) -> None:
        told.append(done)
        await asyncio.sleep(0.1)
        await checkpoint(job, position, done)

    monkeypatch.setattr(Running, "checkpoint", slowly)
    library = Library()
    assert ingested(tmp_path, library, lines(5000)).done == 5000
    assert told == sorted(told) and told[-1] == 5000
    assert len(told) - 1 < library.blocks / 2, "the first is that of the beginning"


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b'{"id": "x"}\n', "line 3001.text: is required"),
        (b"{oops\n", "line 3001: not JSON"),
        (b'{"id": "d7", "text": "again"}\n', "line 3001.id: 'd7' is already the id of line 8"),
    ],
)
def test_a_bad_row_fails_it_and_nothing_is_stored(tmp_path: Path, bad: bytes, says: str) -> None:
    library = Library()
    job = ingested(tmp_path, library, lines(3000) + bad)
    assert (job.state, job.done, job.error_count) == ("failed", 0, 1)
    assert says in job.errors[0]["error"]
    assert not library.blocks


def test_bad_rows_are_skipped_where_that_is_asked_for(tmp_path: Path) -> None:
    library = Library()
    body = lines(300) + b"{oops\n" + b'{"id": "d7", "text": "again"}\n' * 2 + lines(300, 300)
    job = ingested(tmp_path, library, body, on_error="skip")
    assert (job.state, job.done, job.total, job.error_count) == ("succeeded", 600, 600, 3)
    assert [error["place"] for error in job.errors] == ["line 301", "line 302", "line 303"]
    assert "already the id of line 8" in job.errors[2]["error"]
    assert library.documents["d7"].text == "text 7"


def test_the_hashes_of_many_ids_are_not_sorted_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unique, threads = np.unique, list[threading.Thread]()

    def noted(*given: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return unique(*given, **options)

    monkeypatch.setattr(np, "unique", noted)
    assert ingested(tmp_path, Library(), lines(10)).done == 10
    assert threads and threading.main_thread() not in threads


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_nothing_at_all(tmp_path: Path, on_error: str) -> None:
    job = ingested(tmp_path, Library(), b"\n\n", on_error=on_error)
    assert (job.state, job.errors[0]["error"]) == ("failed", "documents: must contain at least one document")


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize("stop_at", soon([1, 5, 11], "5"))
def test_a_restart_in_the_middle_doubles_and_loses_nothing(tmp_path: Path, on_error: str, stop_at: int) -> None:
    """Rows have no ids: those that are made are the same for what is stored again."""
    body = b'{"text": "x"}\n{oops\n' * (on_error == "skip") + b'{"text": "a"}\n' * 3000
    library = Library()
    stopped, first, done = restarted(tmp_path, library, body, stop_at, on_error=on_error)
    good = 3000 + (on_error == "skip")
    assert (done.state, done.done, done.total) == ("succeeded", good, good)
    assert done.error_count == (on_error == "skip")
    assert len(library.documents) == good
    assert library.blocks <= first + -(-(good - stopped.done) // BLOCK_DOCUMENTS)


def test_what_is_left_out_is_left_out_after_a_restart(tmp_path: Path) -> None:
    library = Library()
    body = lines(3000) + b'{"id": "d7", "text": "again"}\n'
    _, _, done = restarted(tmp_path, library, body, 1, on_error="skip")
    assert (done.state, done.done, done.total, done.error_count) == ("succeeded", 3000, 3000, 1)
    assert library.documents["d7"].text == "text 7"


def restarted(folder: Path, library: Library, body: bytes, stop_at: int, **options: Any) -> tuple[Job, int, Job]:
    """A job that was stopped when so many blocks had been given to the library, how many had been then, and its end."""
    found: list[tuple[Job, int, Job]] = []

    async def work() -> None:
        jobs = jobs_around(folder, library)
        jobs.start()
        job = await submitted(jobs, body, **options)
        await state(jobs, job.id, lambda _: library.blocks >= stop_at)
        await jobs.stop()
        jobs.close()
        first = library.blocks
        jobs = jobs_around(folder, library)
        stopped = await jobs.job(job.id)
        assert stopped.state == "queued"
        assert stopped.done <= len(library.documents)
        jobs.start()
        found.append((stopped, first, await state(jobs, job.id, lambda job: job.ended)))
        await jobs.stop()
        jobs.close()

    run(work)
    return found[0]


@pytest.mark.slow
def test_a_busy_server_is_waited_for_and_an_engine_that_fails_now_and_then(tmp_path: Path) -> None:
    errors = iter([Overloaded("busy", retry_after=0.01), Unhealthy("reloading"), Backend("oops")])

    def fails(_: int) -> None:
        if error := next(errors, None):
            raise error

    library = Library(fails)
    assert ingested(tmp_path, library, lines(1000)).state == "succeeded"
    assert len(library.documents) == 1000


def test_what_can_not_be_helped_fails_it(tmp_path: Path) -> None:
    def fails(number: int) -> None:
        if number == 3:
            raise NotFound("there is no corpus 'c'")

    job = ingested(tmp_path, Library(fails), lines(3000))
    assert (job.state, job.errors[-1]["error"]) == ("failed", "there is no corpus 'c'")


def test_cancelling_keeps_what_was_stored(tmp_path: Path) -> None:
    library = Library()

    async def work() -> None:
        jobs = jobs_around(tmp_path, library)
        jobs.start()
        job = await submitted(jobs, lines(20_000))
        await state(jobs, job.id, lambda job: job.done > 0)
        cancelled = await jobs.cancel(job.id)
        assert cancelled.state == "cancelled"
        assert 0 < cancelled.done == len(library.documents) < 20_000, "also what was cancelled too late"
        assert not list((tmp_path / "spool").iterdir())
        blocks = library.blocks
        await asyncio.sleep(0.02)
        assert library.blocks == blocks
        await jobs.stop()
        jobs.close()

    run(work)


@pytest.mark.slow
@pytest.mark.parametrize(("on_error", "reading"), [("skip", 2), ("fail", 3)], ids=["those alike", "those stored"])
def test_rows_that_are_passed_over_are_left_when_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_error: str, reading: int
) -> None:
    """Where one id is there twice all rows are read once more, and where the job goes on after a restart, too."""
    readings, read, under_way, cancelled = count(1), 0, threading.Event(), threading.Event()

    def halting(*given: Any) -> Iterator[Checked]:
        nonlocal read
        this_one = next(readings) == reading
        for number, row in enumerate(checked(*given), 1):
            if this_one:
                read = number
                under_way.set()
                cancelled.wait(60)
            yield row

    monkeypatch.setattr(ingestion, "checked", halting)

    async def work() -> None:
        jobs = jobs_around(tmp_path, Library())
        jobs.start()
        job = await submitted(jobs, lines(20_000) + lines(1) * (on_error == "skip"), on_error=on_error)
        if on_error == "fail":
            await state(jobs, job.id, lambda job: job.done >= 5000)
            await jobs.stop()
            jobs.close()
            jobs = jobs_around(tmp_path, Library())
            jobs.start()
        assert await asyncio.to_thread(under_way.wait, 60)
        cancelling = asyncio.create_task(jobs.cancel(job.id))
        await asyncio.sleep(0.05)
        cancelled.set()
        assert (await cancelling).state == "cancelled"
        assert read < 10
        await jobs.stop()
        jobs.close()

    run(work)


def test_a_file_whose_reader_says_nothing_is_left_when_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def silent(*_: str, **options: Any) -> AbstractContextManager[Popen[bytes]]:
        begun.set()
        return running("timeit", "-n1", "-r1", "import time; time.sleep(20)", **options)

    monkeypatch.setattr("serving.corpora.ingest.reading.running", silent)

    async def work() -> None:
        jobs = jobs_around(tmp_path, Library())
        jobs.start()
        job = await submitted(jobs, b"<p>A page", format="html")
        assert await asyncio.to_thread(begun.wait, 60)
        async with asyncio.timeout(10):
            assert (await jobs.cancel(job.id)).state == "cancelled"
        await jobs.stop()
        jobs.close()

    run(work)


@pytest.mark.slow
@pytest.mark.parametrize("documents", [100_000, 300])
def test_a_spool_of_200_mb_in_bounded_memory(tmp_path: Path, documents: int) -> None:
    library = Library(keeps=False)
    line = json.dumps({"text": "word " * (40_000_000 // documents)}).encode() + b"\n"

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    async def work() -> None:
        jobs = jobs_around(tmp_path, library)
        jobs.start()
        before = peak()
        async with jobs.spool() as spool:
            for _ in range(100):
                await spool.write(line * (documents // 100))
            assert spool.size > 200_000_000
            job = await jobs.submit("ingest", "c", Options(format="ndjson").model_dump(), spool=spool)
        done = await state(jobs, job.id, lambda job: job.ended)
        assert (done.state, library.count) == ("succeeded", documents)
        assert peak() - before < 100_000_000
        await jobs.stop()
        jobs.close()

    run(work)
