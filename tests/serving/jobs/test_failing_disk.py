"""Tests of jobs while the disk of the ledger fails."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from serving.errors import Damaged, InsufficientStorage
from serving.jobs import Job, Jobs, Running
from serving.jobs.ledger import Ledger
from tests.serving.jobs.counting import ended, run
from tests.serving.syncing import noted


def full(*_: object) -> None:
    raise InsufficientStorage("the disk is full")


def test_a_job_that_the_ledger_lost_sight_of_keeps_others_from_its_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep the corpus locked, because the next server continues the job and would undo other changes."""
    begun: list[str] = []
    save, failing = Ledger.save, [True]

    async def take(job: Running) -> None:
        begun.append(job.job.corpus)

    def saved(ledger: Ledger, job: Job) -> None:
        if job.options.get("fails") and job.ended and failing[0]:
            raise Damaged("the ledger is damaged")
        save(ledger, job)

    monkeypatch.setattr(Ledger, "save", saved)

    async def work() -> None:
        jobs = Jobs(tmp_path, {"take": take})
        jobs.start()
        stalled = await jobs.submit("take", "c", {"fails": True})
        while not begun:
            await asyncio.sleep(0.005)
        behind = await jobs.submit("take", "c", {})
        elsewhere = await jobs.submit("take", "d", {})
        assert (await ended(jobs, elsewhere.id)).state == "succeeded"
        assert jobs.unfinished("take", "c") == [stalled.id, behind.id] and begun == ["c", "d"]
        failing[0] = False
        assert (await jobs.cancel(stalled.id)).state == "cancelled"
        assert (await ended(jobs, behind.id)).state == "succeeded"
        await jobs.stop()
        jobs.close()
        with closing(Jobs(tmp_path, {})) as again:
            assert again.unfinished("take", "c") == []

    run(work)


@pytest.mark.parametrize("step", ["running", "checkpoint", "succeeded"])
def test_a_job_goes_on_when_the_ledger_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    save, sleep, refused = Ledger.save, asyncio.sleep, list[str]()

    async def take(job: Running) -> None:
        await job.checkpoint(1, 1)

    def saved(ledger: Ledger, job: Job) -> None:
        if len(refused) < 3 and step == ("checkpoint" if job.done and not job.ended else job.state):
            refused.append(job.state)
            full()
        save(ledger, job)

    monkeypatch.setattr(Ledger, "save", saved)
    monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))

    async def work() -> None:
        jobs = Jobs(tmp_path, {"take": take})
        jobs.start()
        job = await ended(jobs, (await jobs.submit("take", "c", {})).id)
        assert (job.state, job.done, job.error_count, len(refused)) == ("succeeded", 1, 0, 3)
        await jobs.stop()
        jobs.close()

    run(work)


def test_a_job_goes_on_if_its_cancellation_can_not_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, is_full = Ledger.save, [True]

    def saved(ledger: Ledger, job: Job) -> None:
        if is_full and job.state == "cancelled":
            full()
        save(ledger, job)

    monkeypatch.setattr(Ledger, "save", saved)
    begun = asyncio.Queue[str]()

    async def take(job: Running) -> None:
        begun.put_nowait(job.job.id)
        await asyncio.Event().wait()

    async def work() -> None:
        jobs = Jobs(tmp_path, {"take": take})
        jobs.start()
        job = await jobs.submit("take", "c", {})
        assert await begun.get() == job.id
        with pytest.raises(InsufficientStorage):
            await jobs.cancel(job.id)
        assert await asyncio.wait_for(begun.get(), 5) == job.id
        is_full.clear()
        assert (await jobs.cancel(job.id)).state == "cancelled"
        await jobs.stop()
        jobs.close()

    run(work)


def test_a_job_has_ended_although_old_jobs_can_not_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "prune", full)

    async def work() -> None:
        jobs = Jobs(tmp_path, {})
        job = await jobs.submit("take", "c", {})
        assert (await jobs.cancel(job.id)).state == "cancelled"
        assert jobs.unfinished("take", "c") == []
        jobs.close()

    run(work)


def test_what_was_not_accepted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []

    def noting(what: str) -> object:
        def note(job: Job) -> None:
            told.append((what, job.id))

        return note

    async def work() -> None:
        jobs = Jobs(tmp_path, {}, accepting=noting("accepted"), ended=noting("ended"))  # type: ignore[arg-type]
        async with jobs.spool() as spool:
            await spool.write(b"an upload")
            with monkeypatch.context() as patch:
                patch.setattr("serving.jobs.intake.insert", full)
                with pytest.raises(InsufficientStorage):
                    await jobs.submit("take", "c", {}, spool=spool)
        assert not list((tmp_path / "spool").iterdir()) and not jobs.unfinished("take", "c")
        assert [what for what, _ in told] == ["accepted", "ended"] and len({id for _, id in told}) == 1
        jobs.close()

    run(work)


def test_a_new_ledger_survives_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = noted(monkeypatch)
    Ledger(tmp_path / "ledger.sqlite").close()
    part = tmp_path / ".ledger.sqlite.part"
    assert steps[-3:] == [("synced", part), ("moved", part), ("synced", tmp_path)]
