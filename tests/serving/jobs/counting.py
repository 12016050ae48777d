"""A job that counts, and helpers to wait for a job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from serving.jobs import Job, Jobs, Running, Work


async def counting(job: Running) -> dict[str, Any]:
    """Count to ten with a checkpoint for each number. At the number `wait`, pause until the job is cancelled."""
    job.total = 10
    for number in range(job.job.position or 0, 10):
        if number == job.job.options.get("wait"):
            await asyncio.Event().wait()
        job.result.setdefault("counted", []).append(number)
        await job.checkpoint(number + 1, number + 1)
    return {"last": 9}


KINDS: Mapping[str, Work] = {"count": counting}


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(main())


async def state(jobs: Jobs, id: str, wanted: Callable[[Job], object]) -> Job:
    while not wanted(job := await jobs.job(id)):
        await asyncio.sleep(0.005)
    return job


async def ended(jobs: Jobs, id: str) -> Job:
    return await state(jobs, id, lambda job: job.ended)
