"""Tests of cancelled jobs, single ones or all jobs of a removed corpus: finished work stays, and no more is done."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from serving.errors import Conflict, NotFound, Unhealthy
from serving.jobs import Job, Jobs
from tests.conftest import PATIENCE
from tests.serving.jobs.counting import KINDS, ended, run, state


@pytest.mark.parametrize("wait", [0, 5])
def test_cancelling(tmp_path: Path, wait: int) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        running = await jobs.submit("count", "c", {"wait": wait})
        queued = await jobs.submit("count", "c", {})
        assert (await jobs.cancel(queued.id)).state == "cancelled"
        jobs.start()
        await state(jobs, running.id, lambda job: job.state == "running" and job.done == wait)
        following = await jobs.submit("count", "c", {"other": 1})
        cancelled = await jobs.cancel(running.id)
        assert (cancelled.state, cancelled.done, cancelled.eta_s) == ("cancelled", wait, None)
        assert (await ended(jobs, following.id)).state == "succeeded", "the next one of the corpus"
        assert (await jobs.cancel(following.id)).state == "succeeded", "what ended stays as it is"
        with pytest.raises(NotFound, match="there is no job 'x'"):
            await jobs.cancel("x")
        await jobs.stop()
        jobs.close()
        again = Jobs(tmp_path, KINDS)
        assert (await again.job(running.id)).state == "cancelled"
        again.close()

    run(work)


def test_a_job_cancelled_before_its_first_step(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        job = await jobs.submit("count", "c", {})
        jobs.start()
        assert (await jobs.cancel(job.id)).state == "cancelled"
        assert (await ended(jobs, (await jobs.submit("count", "c", {})).id)).state == "succeeded"
        await jobs.stop()
        jobs.close()

    run(work)


def test_all_that_changes_a_corpus_is_cancelled(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, {**KINDS, "beside": KINDS["count"]}, beside=["beside"])
        jobs.start()
        running = await jobs.submit("count", "c", {"wait": 0})
        queued = await jobs.submit("count", "c", {"wait": 1})
        others = [await jobs.submit("count", "d", {"wait": 2}), await jobs.submit("beside", "c", {"wait": 2})]
        async with jobs.deleting("c"):
            with pytest.raises(Conflict, match="being deleted"):
                await jobs.submit("count", "c", {"wait": 3})
            await jobs.submit("count", "e", {"wait": 3})
        await jobs.submit("count", "c", {"wait": 3})
        assert [(await jobs.job(job.id)).state for job in (running, queued)] == ["cancelled", "cancelled"]
        assert not (await jobs.job(queued.id)).started, "it never had its turn"
        for job in others:
            assert (await state(jobs, job.id, lambda job: job.done == 2)).state == "running"
        await jobs.stop()
        jobs.close()

    run(work)


def test_what_changes_nothing_and_has_not_begun_is_cancelled_too(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, {**KINDS, "beside": KINDS["count"]}, beside=["beside"], at_once=1)
        jobs.start()
        busy = await jobs.submit("count", "d", {"wait": 2})
        queued = await jobs.submit("beside", "c", {})
        await state(jobs, busy.id, lambda job: job.done == 2)
        async with jobs.deleting("c"):
            assert (await jobs.job(queued.id)).state == "cancelled"
        assert (await jobs.job(busy.id)).state == "running"
        await jobs.stop()
        jobs.close()

    run(work)


def test_what_is_being_queued_as_a_corpus_goes_is_cancelled_too(tmp_path: Path) -> None:
    queueing, go_on = threading.Event(), threading.Event()

    def accepting(_: Job) -> None:
        queueing.set()
        assert go_on.wait(PATIENCE)

    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS, accepting=accepting)
        jobs.start()
        submitting = asyncio.create_task(jobs.submit("count", "c", {"wait": 0}))
        await asyncio.to_thread(queueing.wait, PATIENCE)
        async with asyncio.TaskGroup() as group:
            deleting = group.create_task(entered(jobs.deleting("c")))
            await asyncio.sleep(0)
            assert not deleting.done()
            go_on.set()
        assert (await jobs.job((await submitting).id)).state == "cancelled"
        await jobs.stop()
        jobs.close()

    async def entered(manager: AbstractAsyncContextManager[None]) -> None:
        async with manager:
            pass

    run(work)


def test_nothing_is_said_to_be_cancelled_that_the_next_server_goes_on_with(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        jobs.start()
        job = await jobs.submit("count", "c", {"wait": 0})
        await jobs.stop()
        with pytest.raises(Unhealthy):
            await jobs.cancel(job.id)
        with pytest.raises(Unhealthy):
            async with jobs.deleting("c"):
                pytest.fail("its jobs would come to another")
        assert not (await jobs.job(job.id)).ended
        jobs.close()

    run(work)
