"""Tests of jobs: a queued job is done exactly once, whatever happens to the server."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from serving.corpora.ports import StoreError
from serving.errors import Empty, NotFound, Overloaded, Unhealthy
from serving.jobs import Duplicate, Job, Jobs, Running
from serving.jobs.job import MAX_ERROR, MAX_ERROR_BYTES, MAX_ERRORS, MAX_PLACE, Pace
from tests.serving.jobs.counting import KINDS, ended, run, state


def test_a_job_is_done_and_told(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        queued = await jobs.submit("count", "c", {})
        assert (queued.state, queued.done, queued.total, queued.position) == ("queued", 0, None, None)
        assert await jobs.job(queued.id) == queued
        jobs.start()
        done = await ended(jobs, queued.id)
        assert (done.state, done.done, done.total, done.errors) == ("succeeded", 10, 10, ())
        assert done.result == {"counted": list(range(10)), "last": 9}
        assert done.created <= (done.started or 0) <= (done.finished or 0) <= time.time()
        assert [job.id for job in await jobs.listing()] == [done.id]
        await jobs.stop()
        jobs.close()

    run(work)


def test_times_of_a_job_never_go_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the machine's clock back, as after a correction."""

    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        queued = await jobs.submit("count", "c", {})
        now = time.time()
        monkeypatch.setattr("serving.jobs.jobs.time.time", lambda: now - 1000)
        jobs.start()
        done = await ended(jobs, queued.id)
        assert queued.created == done.started == done.finished
        await jobs.stop()
        jobs.close()

    run(work)


def test_a_job_goes_on_after_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        jobs.start()
        first = await jobs.submit("count", "c", {"wait": 4})
        second = await jobs.submit("count", "c", {"second": True})
        await state(jobs, first.id, lambda job: job.done == 4)
        await jobs.stop()
        assert (await jobs.job(first.id)).state == "running"
        with pytest.raises(Unhealthy):
            await jobs.submit("count", "d", {})
        jobs.close()

        begun: list[int | None] = []

        async def on(job: Running) -> dict[str, Any] | None:
            begun.append(job.job.position)
            job.total = 10
            await job.checkpoint(10, 10)
            return None

        jobs = Jobs(tmp_path, {"count": on})
        assert [job.id for job in await jobs.listing()] == [second.id, first.id]
        jobs.start()
        done = await ended(jobs, first.id)
        assert (done.state, done.result) == ("succeeded", {"counted": [0, 1, 2, 3]}), "as of its last checkpoint"
        assert (await ended(jobs, second.id)).state == "succeeded"
        assert begun == [4, None]
        await jobs.stop()
        jobs.close()

    run(work)


def test_a_runner_that_dies_between_checkpoints_loses_no_more(tmp_path: Path) -> None:
    """End the runner without `stop`, which leaves the ledger as after `kill -9`."""

    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        jobs.start()
        job = await jobs.submit("count", "c", {"wait": 7})
        await state(jobs, job.id, lambda job: job.done == 7)
        other = Jobs(tmp_path, KINDS)
        assert (await other.job(job.id)).position == 7
        other.close()
        await jobs.stop()
        jobs.close()

    run(work)


def test_one_at_a_time_for_each_corpus_and_a_few_in_all(tmp_path: Path) -> None:
    running: set[str] = set()
    most = 0
    two = asyncio.Event()

    async def slow(job: Running) -> None:
        nonlocal most
        assert job.job.corpus not in running
        running.add(job.job.corpus)
        most = max(most, len(running))
        if most == 2:
            two.set()
        await two.wait()
        await asyncio.sleep(0.02)
        running.remove(job.job.corpus)

    async def work() -> None:
        jobs = Jobs(tmp_path, {"slow": slow}, at_once=2)
        jobs.start()
        submitted = [await jobs.submit("slow", corpus, {"n": n}) for n in range(3) for corpus in "abc"]
        found = [await ended(jobs, job.id) for job in submitted]
        assert {job.state for job in found} == {"succeeded"}
        assert most == 2
        await jobs.stop()
        jobs.close()

    run(work)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Empty("must contain one", field="documents"), {"place": "documents", "error": "documents: must contain one"}),
        (KeyError("secret"), {"place": "fail", "error": "internal error: KeyError; the server's log has details"}),
    ],
)
def test_failing(tmp_path: Path, error: Exception, told: dict[str, str]) -> None:
    async def fail(job: Running) -> None:
        for n in range(2 * MAX_ERRORS):
            job.error(f"line {n}", "bad")
        raise error

    async def work() -> None:
        jobs = Jobs(tmp_path, {"fail": fail})
        jobs.start()
        failed = await ended(jobs, (await jobs.submit("fail", "c", {})).id)
        assert (failed.state, failed.error_count, len(failed.errors)) == ("failed", 2 * MAX_ERRORS + 1, MAX_ERRORS)
        assert failed.errors[0] == {"place": "line 0", "error": "bad"}
        assert failed.errors[-1] == told
        assert (await ended(jobs, (await jobs.submit("unknown", "c", {})).id)).state == "failed"
        await jobs.stop()
        jobs.close()

    run(work)


@pytest.mark.parametrize("character", ["\U0001f600", "\ud800", "\0"])
def test_the_errors_of_a_job_take_bounded_room(tmp_path: Path, character: str) -> None:
    async def fail(job: Running) -> None:
        for _ in range(2):
            job.forget_errors()
            for _ in range(MAX_ERRORS):
                job.error(character * MAX_PLACE, character * MAX_ERROR)
        await job.checkpoint(1, 1)
        again = Running(job.job, None, job._save)  # This is the state after a restart.
        again.error(character * MAX_PLACE, character * MAX_ERROR)
        assert again.seen.errors == job.seen.errors
        raise Empty("must contain one")

    async def work() -> None:
        jobs = Jobs(tmp_path, {"fail": fail})
        jobs.start()
        job = await ended(jobs, (await jobs.submit("fail", "c", {})).id)
        assert (job.error_count, 20 < len(job.errors) <= MAX_ERRORS) == (MAX_ERRORS + 1, True)
        assert job.errors[0] == {"place": character * MAX_PLACE, "error": character * MAX_ERROR}
        assert job.errors[-1] == {"place": "fail", "error": "must contain one"}
        await jobs.stop()
        jobs.close()
        with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as connection:
            (taken,) = connection.execute("SELECT length(CAST(errors AS BLOB)) FROM jobs").fetchone()
        assert taken < 1.1 * MAX_ERROR_BYTES

    run(work)


def test_the_ledger_is_free_while_what_it_read_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        job = await jobs.submit("count", "c", {})
        held = list[bool]()

        def parsed(text: str) -> Any:
            held.append(jobs._ledger._lock.locked())
            return json.loads(text)

        monkeypatch.setattr("serving.jobs.ledger.json", SimpleNamespace(loads=parsed))
        assert await jobs.listing() == [job]
        assert held and not any(held)
        jobs.close()

    run(work)


def test_the_same_again_is_a_conflict_until_it_ended(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        first = await jobs.submit("count", "c", {"a": 1, "b": 2})
        with pytest.raises(Duplicate, match=first.id) as same:
            await jobs.submit("count", "c", {"b": 2, "a": 1})
        assert (same.value.job, same.value.status) == (first.id, 409)
        await jobs.submit("count", "d", {"a": 1, "b": 2})
        jobs.start()
        await ended(jobs, first.id)
        assert (await jobs.submit("count", "c", {"a": 1, "b": 2})).id != first.id
        await jobs.stop()
        jobs.close()

    run(work)


def test_too_many_wait(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS, waiting=2)
        for n in range(2):
            await jobs.submit("count", "c", {"n": n})
        with pytest.raises(Overloaded, match="2 jobs"):
            await jobs.submit("count", "c", {})
        jobs.close()

    run(work)


def test_old_jobs_are_forgotten(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS, kept=3)
        jobs.start()
        ids = []
        for n in range(6):
            job = await jobs.submit("count", "c", {"n": n})
            await ended(jobs, job.id)
            ids.append(job.id)
        assert [job.id for job in await jobs.listing()] == ids[:2:-1]
        with pytest.raises(NotFound):
            await jobs.job(ids[0])
        await jobs.stop()
        jobs.close()

    run(work)


def test_a_ledger_that_is_none(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    ledger.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match=r"ledger\.sqlite: file is not a database"):
        Jobs(tmp_path, KINDS)
    ledger.write_bytes(b"")
    with pytest.raises(StoreError, match=r"ledger\.sqlite: has no tables for jobs; move the file away"):
        Jobs(tmp_path, {})
    assert ledger.exists()
    ledger.unlink()
    with closing(sqlite3.connect(ledger)) as connection:
        connection.execute("PRAGMA user_version = 99")
    later = ledger.read_bytes()
    with pytest.raises(
        StoreError, match=r"has the format 99, but this server supports formats up to \d; use the version that wrote"
    ):
        Jobs(tmp_path, KINDS)
    assert ledger.read_bytes() == later, "an older version changes nothing of what it can't read"


@pytest.mark.parametrize("seed", range(20))
def test_a_ledger_that_is_damaged_is_refused_by_name_or_read(tmp_path: Path, seed: int) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        for n in range(20):
            await jobs.submit("count", "c", {"n": n})
        jobs.close()
        ledger = tmp_path / "ledger.sqlite"
        body, random = bytearray(ledger.read_bytes()), Random(seed)
        for _ in range(5):
            body[random.randrange(len(body) - 4096, len(body))] ^= 1 << random.randrange(8)
        ledger.write_bytes(body)
        try:
            jobs = Jobs(tmp_path, KINDS)
        except StoreError as error:
            assert "ledger.sqlite" in str(error)
            return
        try:
            assert len(await jobs.listing()) == 20
        except Unhealthy as error:
            assert "ledger.sqlite" in error.message
        jobs.close()

    run(work)


def test_the_rate_is_of_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace = Pace()
    assert pace.rate is None
    for second in range(100):
        now = float(second)
        pace.add(10 * second if second < 50 else 500 + 20 * (second - 50))
    assert pace.rate == pytest.approx(20)
    job = Job(id="a", kind="k", corpus="c", state="running", done=500, total=1000, rate=pace.rate)
    assert job.eta_s == pytest.approx(25)
