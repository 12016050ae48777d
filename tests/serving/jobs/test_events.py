"""Tests of a job's events: a listener receives all of them up to the job's end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from serving.errors import NotFound
from serving.jobs import Job, Jobs
from tests.serving.jobs.counting import KINDS, run, state


def test_events_tell_everything_to_the_end(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        job = await jobs.submit("count", "c", {})

        async def follow() -> list[Job]:
            return [event async for event in jobs.events(job.id) if event]

        followers = [asyncio.create_task(follow()) for _ in range(3)]
        left = asyncio.create_task(follow())
        await asyncio.sleep(0)
        left.cancel()
        jobs.start()
        for follower in followers:
            seen = await follower
            assert [event.done for event in seen] == sorted(event.done for event in seen)
            assert (seen[0].state, seen[-1].state) == ("queued", "succeeded")
            assert any(event.rate for event in seen)
        assert [event.state async for event in jobs.events(job.id) if event] == ["succeeded"]
        with pytest.raises(NotFound):
            await anext(jobs.events("x"))
        await jobs.stop()
        jobs.close()

    run(work)


def test_events_of_a_quiet_job_and_of_a_server_that_goes(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        jobs.start()
        job = await jobs.submit("count", "c", {"wait": 3})
        await state(jobs, job.id, lambda job: job.done == 3)
        events = jobs.events(job.id, quiet=0.01)
        first = await anext(events)
        assert first and first.done == 3
        assert await anext(events) is None
        await jobs.stop()
        rest = [event async for event in events if event]
        assert [event.state for event in rest] == ["running"]
        jobs.close()

    run(work)


def test_events_of_a_job_that_is_forgotten_meanwhile(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS, kept=0)
        job = await jobs.submit("count", "c", {})
        events = jobs.events(job.id)
        first = await anext(events)
        assert first and first.state == "queued"
        jobs.start()
        with pytest.raises(NotFound):
            await state(jobs, job.id, lambda _: False)
        assert [event async for event in events if event] == []
        await jobs.stop()
        jobs.close()

    run(work)
